//! What a job is: images, disk, link and options, all out of its seed.

use std::time::Duration;

use testbed::images::content::Numbers;

/// Of a sparse image one byte in so many is data.
pub const SPARSE: u64 = 10;
/// How long it takes until the first byte is sent, and after the last.
const STARTING: Duration = Duration::from_millis(400);

/// The disk that the copies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// FUSE, that fails when told to.
    Faulty,
    /// The same, and forgets what was not synced when the power goes.
    Volatile,
    /// ext4 on a loop device, whose power can go.
    Ext4,
}

/// What is in an image.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    Dense,
    Sparse,
    Hole,
}

/// One image.
#[derive(Clone, Copy, Debug)]
pub struct ImagePlan {
    pub content: Content,
    /// Bytes.
    pub size: u64,
}

/// One job.
#[derive(Debug)]
pub struct Plan {
    pub disk: DiskKind,
    pub images: Vec<ImagePlan>,
    /// Of the link, Mbit/s.
    pub rate: u64,
    /// Bytes per second that the sender may send.
    limit: u64,
    pub options: Vec<String>,
    /// So many attempts are disturbed.
    pub disturbed: u64,
}

impl Plan {
    /// Throws the dice.
    pub fn new(dice: &mut Numbers) -> Plan {
        let disk = one_of(dice, &[DiskKind::Faulty, DiskKind::Volatile, DiskKind::Volatile, DiskKind::Ext4]);
        let images = (0..1 + dice.below(4).saturating_sub(1)).map(|_| image(dice)).collect();
        let mut options: Vec<String> = Vec::new();
        let mut option = |name: &str, value: &str| options.extend([name.to_owned(), value.to_owned()]);
        option("--streams", one_of(dice, &["1", "2", "4", "8"]));
        option("--chunk", one_of(dice, &["64K", "256K", "1M", "4M"]));
        option("--transport", one_of(dice, &["tls", "tcp"]));
        option("--engine", one_of(dice, &["uring", "sync"]));
        let limit: u64 = one_of(dice, &[10, 20, 40]);
        option("--limit", &format!("{limit}MiB/s"));
        option("--peer-timeout", "3");
        match dice.below(4) {
            0 => {}
            _ => option("--sync-window", one_of(dice, &["512K", "2M", "8M"])),
        }
        if dice.below(4) == 0 {
            option("--verify", "readback");
        }
        if dice.below(3) == 0 {
            options.push("--no-direct".into());
        }
        let rate = one_of(dice, &[300, 1000, 3000]);
        Plan { disk, images, rate, limit: limit << 20, options, disturbed: 1 + dice.below(6) }
    }

    /// About how long an attempt takes that nobody disturbs.
    pub fn expected(&self) -> Duration {
        let data = |image: &ImagePlan| match image.content {
            Content::Dense => image.size,
            Content::Sparse => image.size / SPARSE,
            Content::Hole => 0,
        };
        let data: u64 = self.images.iter().map(data).sum();
        STARTING + Duration::from_millis(data * 1000 / self.limit)
    }

    /// Bytes of all images.
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.size).sum()
    }
}

fn image(dice: &mut Numbers) -> ImagePlan {
    let content =
        one_of(dice, &[Content::Dense, Content::Dense, Content::Dense, Content::Sparse, Content::Hole]);
    let most = match content {
        Content::Dense => one_of(dice, &[10_000, 16 << 20, 32 << 20, 32 << 20]),
        Content::Sparse => 256 << 20,
        Content::Hole => 1 << 30,
    };
    // Any size at all, or one that ends with a page.
    let size = 1 + dice.below(most);
    ImagePlan { content, size: if dice.below(2) == 0 { size } else { size.next_multiple_of(4096) } }
}

/// Any of them.
pub fn one_of<T: Copy>(dice: &mut Numbers, all: &[T]) -> T {
    all[usize::try_from(dice.below(all.len() as u64)).unwrap_or(0)]
}
