//! The axes, and the images that their steps move.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use testbed::images;
use vmferry_benches::ferry::Failed;

/// Size of the sparse image, bytes: ext4 takes no file above 16 TiB.
const SPARSE: u64 = 8 << 40;

/// What is changed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Connections.
    Streams,
    /// Unit of work.
    Chunk,
    /// Images of one job, the same data in all.
    Images,
    /// Size of the image.
    Size,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::Streams => "streams",
            Axis::Chunk => "chunk",
            Axis::Images => "images",
            Axis::Size => "size",
        })
    }
}

/// One value of what is changed.
pub struct Step {
    /// The value.
    pub name: String,
    /// For `vmferry send`.
    pub words: Vec<String>,
    /// What is moved.
    pub images: Vec<PathBuf>,
    /// Too large to be read as a whole.
    pub sparse: bool,
}

impl Step {
    fn new(name: impl Into<String>, images: Vec<PathBuf>) -> Step {
        Step { name: name.into(), words: Vec::new(), images, sparse: false }
    }
}

impl Axis {
    /// The steps, with images in `folder` that hold `bytes` of data in each step.
    pub fn steps(self, folder: &Path, bytes: u64) -> Result<Vec<Step>, Failed> {
        match self {
            Axis::Streams => option(folder, bytes, "--streams", &["1", "2", "4", "8", "16", "32", "64"]),
            Axis::Chunk => {
                option(folder, bytes, "--chunk", &["64K", "128K", "256K", "512K", "1M", "2M", "4M"])
            }
            Axis::Images => [1, 2, 4, 8, 16]
                .map(|count| {
                    let files =
                        (0..count).map(|i| dense(folder, &format!("{i}-of-{count}.img"), bytes / count));
                    Ok(Step::new(count.to_string(), files.collect::<Result<_, Failed>>()?))
                })
                .into_iter()
                .collect(),
            Axis::Size => {
                let sparse = folder.join("sparse.img");
                images::sparse(&sparse, SPARSE, bytes, 9)?;
                let mib = bytes >> 20;
                let half = dense(folder, "half.img", bytes / 2)?;
                let whole = dense(folder, "whole.img", bytes)?;
                let huge = Step::new(format!("8 TiB, {mib} MiB of it data"), vec![sparse]);
                Ok(vec![
                    Step::new(format!("{} MiB, dense", mib / 2), vec![half]),
                    Step::new(format!("{mib} MiB, dense"), vec![whole]),
                    Step { sparse: true, ..huge },
                ])
            }
        }
    }
}

/// Values of one option, with one dense image.
fn option(folder: &Path, bytes: u64, word: &str, values: &[&str]) -> Result<Vec<Step>, Failed> {
    let image = dense(folder, "dense.img", bytes)?;
    let step = |value: &&str| {
        let words = vec![word.to_owned(), (*value).to_owned()];
        Step { words, ..Step::new(*value, vec![image.clone()]) }
    };
    Ok(values.iter().map(step).collect())
}

fn dense(folder: &Path, name: &str, bytes: u64) -> Result<PathBuf, Failed> {
    let path = folder.join(name);
    images::random(&path, bytes, 7)?;
    Ok(path)
}
