//! What a qcow2 image needs besides its own file. Images are copied byte for byte whatever they
//! are; this only keeps from moving one that would be worthless alone. Nothing that a header names
//! is ever opened: a guest may have written it.
//!
//! Source: "The qcow2 image format", docs/interop/qcow2.rst of QEMU.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use proto::control::Failure;

/// The header, its extensions and the backing file's name lie in the first cluster, and the
/// smallest cluster is 512 bytes, the usual one 64 KiB.
const FIRST_CLUSTER: u64 = 64 << 10;
const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Incompatible feature bit 2: guest data lie in a file of their own.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Header extension with that file's name.
const DATA_FILE_NAME: u32 = 0x4441_5441;
/// Longest name of a backing file.
const NAME_MAX: u32 = 1023;

/// Files without which an image is not whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The image that this one is an overlay of.
    pub backing: Option<String>,
    /// Where the guest's data lie.
    pub data: Option<String>,
}

/// Reads the first bytes of an image (64 KiB, or all of it). What is no qcow2 needs nothing.
pub fn needs(head: &[u8]) -> Needs {
    let u32_at = |at: usize| Some(u32::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let version = u32_at(4).unwrap_or(0);
    if !head.starts_with(&MAGIC) || version < 2 {
        return Needs::default();
    }
    let text = |from: u64, len: u32| {
        let from = usize::try_from(from).ok()?;
        let bytes = head.get(from..from.checked_add(len.min(NAME_MAX) as usize)?)?;
        let name: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
        (!name.is_empty()).then_some(name)
    };
    let unnamed = || Some("(a file that its header does not name)".to_owned());
    let backing = match (u64_at(8), u32_at(16)) {
        (Some(at @ 1..), Some(len @ 1..)) => text(at, len).or_else(unnamed),
        _ => None,
    };
    let external = version >= 3 && u64_at(72).unwrap_or(0) & EXTERNAL_DATA != 0;
    let data = external.then(|| data_file(&u32_at, &text)).and_then(|name| name.or_else(unnamed));
    Needs { backing, data }
}

/// Walks the header extensions: type, length, data padded to 8 bytes; type 0 ends them.
fn data_file(
    u32_at: &impl Fn(usize) -> Option<u32>,
    text: &impl Fn(u64, u32) -> Option<String>,
) -> Option<String> {
    let mut at = u32_at(100)? as usize;
    loop {
        let (kind, len) = (u32_at(at)?, u32_at(at.checked_add(4)?)?);
        let content = at.checked_add(8)?;
        match kind {
            0 => return None,
            DATA_FILE_NAME => return text(content as u64, len),
            _ => at = content.checked_add((len as usize).checked_next_multiple_of(8)?)?,
        }
    }
}

/// Refuses an image that is only a part of one.
///
/// # Errors
/// A sentence that names what is missing and the ways on, exit code 3. An image that cannot be
/// read is somebody else's to complain about.
pub fn check_whole(path: &Path) -> Result<(), Failure> {
    let mut head = Vec::new();
    let regular = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    if !regular || File::open(path).and_then(|f| f.take(FIRST_CLUSTER).read_to_end(&mut head)).is_err() {
        return Ok(());
    }
    let needs = needs(&head);
    let what = match (&needs.backing, &needs.data) {
        (None, None) => return Ok(()),
        (Some(backing), _) => format!("is an overlay of '{backing}', which is not sent with it"),
        (None, Some(data)) => format!("keeps its data in '{data}', which is not sent with it"),
    };
    let name = path.display();
    Err(Failure::new(
        3,
        format!(
            "{name} {what}: make it whole first (qemu-img convert -O qcow2 {name} NEW), or send the file as it is with --format raw"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32, backing: Option<&[u8]>, features: u64, extensions: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 104];
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&version.to_be_bytes());
        head[72..80].copy_from_slice(&features.to_be_bytes());
        head[100..104].copy_from_slice(&104_u32.to_be_bytes());
        head.extend_from_slice(extensions);
        head.extend_from_slice(&[0; 8]);
        if let Some(name) = backing {
            let at = head.len() as u64;
            head[8..16].copy_from_slice(&at.to_be_bytes());
            head[16..20].copy_from_slice(&(name.len() as u32).to_be_bytes());
            head.extend_from_slice(name);
        }
        head
    }

    fn extension(kind: u32, content: &[u8]) -> Vec<u8> {
        let mut out = [kind.to_be_bytes(), (content.len() as u32).to_be_bytes()].concat();
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    #[test]
    fn overlays_and_external_data_are_seen() {
        let alone = Needs::default();
        assert_eq!(needs(b""), alone);
        assert_eq!(needs(&[0; 512]), alone);
        assert_eq!(needs(&header(2, None, 0, &[])), alone);
        assert_eq!(needs(&header(3, None, 1 << 3, &[])), alone);
        let backing = |name: &str| Needs { backing: Some(name.into()), data: None };
        assert_eq!(needs(&header(2, Some(b"base.img"), 0, &[])), backing("base.img"));
        assert_eq!(needs(&header(3, Some(b"/a/b\n\x1b[31m"), 0, &[])), backing("/a/b[31m"));
        let names = [extension(0x6803_f857, b"feature"), extension(DATA_FILE_NAME, b"x.raw")].concat();
        let data = Needs { backing: None, data: Some("x.raw".into()) };
        assert_eq!(needs(&header(3, None, EXTERNAL_DATA, &names)), data);
    }

    #[test]
    fn a_name_that_is_not_there_still_counts() {
        let mut far = header(3, Some(b"base"), EXTERNAL_DATA, &extension(9, &[7; 3]));
        far[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
        far[100..104].copy_from_slice(&u32::MAX.to_be_bytes());
        let found = needs(&far);
        assert!(found.backing.is_some() && found.data.is_some(), "{found:?}");
        for cut in 0..far.len() {
            let _ = needs(&far[..cut]);
        }
    }
}
