//! The place of a comparison: two hosts, an image, and what the tools need to be started.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use testbed::images;
use testbed::net::{Link, LinkConfig, Shape};

use crate::Failed;
use crate::results::{Content, Scene, Store, Wire};

/// Virtual size of the sparse image in sizes of the dense one, and the part of it that is data.
const SPARSE: (u64, u64) = (2, 4);
/// After the disk was flushed, before the next run.
const PAUSE: Duration = Duration::from_millis(300);

/// One scene, set up. Paths are absolute and hold nothing that a shell would take apart.
pub struct Bed {
    /// The two hosts: the source is a.
    pub link: Link,
    /// Address of the source's host.
    pub a: String,
    /// Address of the destination's host.
    pub b: String,
    /// Everything is in here.
    pub folder: String,
    /// Name of the image in `source` and in `arrived`.
    pub name: &'static str,
    /// Folder of nothing but the source image.
    pub source: String,
    /// Folder of nothing but the copy.
    pub arrived: String,
    /// The source image.
    pub image: String,
    /// The copy.
    pub target: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Data in it in bytes.
    pub data: u64,
    /// The image has holes.
    pub is_sparse: bool,
    /// The images are on a disk.
    pub is_disk: bool,
    /// Script in place of ssh: runs a command on the destination's host.
    pub shell: String,
    /// The binary of this build.
    pub vmferry: String,
    /// Asynchronous I/O that qemu has here: `io_uring` or `native`.
    pub aio: &'static str,
    /// rsyncd.conf with a module `arrived`.
    pub rsync_config: String,
    /// rsync's option to flush files; empty when it has none.
    pub rsync_flush: &'static str,
    /// sshd_config for `key`.
    pub sshd_config: String,
    /// Private key of ssh clients.
    pub key: String,
    /// Options of ssh and scp for this key and AES-GCM, the fastest cipher of these.
    pub ssh_options: String,
    _folder: TempDir,
}

impl Bed {
    /// Makes a scene in a new folder inside `parent`, its image of `size` bytes when dense.
    pub fn new(scene: Scene, parent: &Path, tools: &Path, size: u64) -> Result<Self, Failed> {
        let temporary = tempfile::Builder::new().prefix("vmferry-peers-").tempdir_in(parent)?;
        let folder = plain(temporary.path())?;
        let is_sparse = scene.image == Content::Sparse;
        let name = if is_sparse { "sparse.img" } else { "dense.img" };
        let [source, arrived] = ["source", "arrived"].map(|name| format!("{folder}/{name}"));
        let image = format!("{source}/{name}");
        fs::create_dir(&source)?;
        let (size, data) = make_image(Path::new(&image), size, is_sparse)?;

        let shell = format!("{folder}/there");
        fs::write(
            &shell,
            "echo 0 >\"$PEERS_DOOR\" && exec testbed local-shell --netns \"$PEERS_NETNS\" \"$@\"\n",
        )?;
        let rsync_config = format!("{folder}/rsyncd.conf");
        fs::write(
            &rsync_config,
            format!(
                "use chroot = no\nuid = root\ngid = root\nreverse lookup = no\nlog file = /dev/null\n\
                 [arrived]\npath = {arrived}\nread only = no\n"
            ),
        )?;
        let key = format!("{folder}/key");
        let link = up(scene.link)?;
        Ok(Self {
            a: link.a().address().to_string(),
            b: link.b().address().to_string(),
            name,
            target: format!("{arrived}/{name}"),
            size,
            data,
            is_sparse,
            is_disk: scene.store == Store::Disk,
            shell,
            vmferry: plain(&tools.join("vmferry"))?,
            aio: qemu_aio(&image),
            rsync_config,
            rsync_flush: rsync_flush(),
            sshd_config: sshd_config(&folder, &key)?,
            ssh_options: format!(
                "-F none -i {key} -c aes128-gcm@openssh.com -o IdentitiesOnly=yes -o BatchMode=yes \
                 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
            ),
            key,
            link,
            source,
            arrived,
            image,
            folder,
            _folder: temporary,
        })
    }

    /// Uses the memory that the copy will take, and frees it: a hypervisor takes back what its
    /// guest has not used for a while, and to get it again would be most of what is measured.
    fn warm_up(&self) -> Result<(), Failed> {
        let ballast = format!("{}/ballast", self.folder);
        let mut file = fs::File::create(&ballast)?;
        let block = vec![0; 1 << 20];
        for _ in 0..self.data.div_ceil(block.len() as u64) + 256 {
            file.write_all(&block)?;
        }
        fs::remove_file(&ballast)?;
        Ok(())
    }

    /// Before each run: no copy, an idle disk, and nothing of the image in the page cache.
    pub fn prepare(&self, sized: bool) -> Result<(), Failed> {
        if Path::new(&self.arrived).exists() {
            fs::remove_dir_all(&self.arrived)?;
        }
        fs::create_dir(&self.arrived)?;
        if sized {
            fs::File::create(&self.target)?.set_len(self.size)?;
        }
        said("sync", &["-f", &self.folder])?;
        if self.is_disk {
            fadvise(fs::File::open(&self.image)?, 0, None, Advice::DontNeed)?;
        } else {
            self.warm_up()?;
        }
        sleep(PAUSE);
        Ok(())
    }

    /// Compares copy and source; returns whether the holes were kept, if there are any.
    pub fn verify(&self) -> Result<Option<bool>, Failed> {
        let target = Path::new(&self.target);
        // Before anything else is read: some file systems preallocate until the file is closed.
        let allocated = images::allocated(target)?;
        images::equal(Path::new(&self.image), target)?;
        // A hundredth more, and a little, is the file system's own.
        Ok(self.is_sparse.then_some(allocated <= self.data + self.data / 100 + (1 << 20)))
    }
}

fn up(wire: Wire) -> Result<Link, Failed> {
    let shape = Shape::mbit(4950, 3700);
    let config = match wire {
        Wire::Bare => LinkConfig::default(),
        Wire::Cable => LinkConfig { shape, ..LinkConfig::default() },
        Wire::Far => LinkConfig { shape, delay: Some(Duration::from_millis(10)), ..LinkConfig::default() },
    };
    Ok(Link::up(config)?)
}

/// Size and data of the image in bytes.
fn make_image(path: &Path, size: u64, is_sparse: bool) -> Result<(u64, u64), Failed> {
    if !is_sparse {
        images::random(path, size, 7)?;
        return Ok((size, size));
    }
    let size = size * SPARSE.0;
    let extents = images::sparse(path, size, size / SPARSE.1, 7)?;
    Ok((size, extents.iter().map(|extent| extent.end - extent.start).sum()))
}

/// A path that can stand in a line of shell as it is.
fn plain(path: &Path) -> Result<String, Failed> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let text = path.to_str().filter(|text| text.chars().all(fine));
    text.map(str::to_owned).ok_or_else(|| {
        format!("{} has characters that a shell would take apart: use another --folder", path.display())
            .into()
    })
}

/// Makes throw-away keys, and the configuration of a server that knows only them.
fn sshd_config(folder: &str, key: &str) -> Result<String, Failed> {
    let host_key = format!("{folder}/host_key");
    for file in [key, &host_key] {
        said("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", file])?;
    }
    // Where Debian's sshd puts its unprivileged half; its service makes the same folder.
    let privilege = PathBuf::from("/run/sshd");
    if !privilege.exists() {
        fs::create_dir(&privilege)?;
        fs::set_permissions(&privilege, fs::Permissions::from_mode(0o755))?;
    }
    let path = format!("{folder}/sshd_config");
    fs::write(
        &path,
        format!(
            "HostKey {host_key}\nAuthorizedKeysFile {key}.pub\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\nUseDNS no\n\
             Subsystem sftp internal-sftp\n"
        ),
    )?;
    Ok(path)
}

/// Kernel and build of qemu have to know io_uring: one read tells.
fn qemu_aio(image: &str) -> &'static str {
    let read = said("qemu-img", &["bench", "-f", "raw", "-t", "none", "-i", "io_uring", "-c", "1", image]);
    if read.is_ok() { "io_uring" } else { "native" }
}

/// rsync has the option since 3.2.4.
fn rsync_flush() -> &'static str {
    let help = said("rsync", &["--help"]).unwrap_or_default();
    if help.contains("--fsync") { "--fsync" } else { "" }
}

/// What a short command prints.
pub fn said(program: &str, words: &[&str]) -> Result<String, Failed> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}
