//! The words of `status` and `drop`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct Status {
    /// Folders that copies grow in
    #[arg(value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub folders: Vec<PathBuf>,
    /// One JSON object a line on standard output (docs/json.md)
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `drop`.
#[derive(Args, Debug)]
pub struct Discard {
    /// An image by its final name, its part file, or its ledger. What has a final name stays
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Also drop an older copy that was changed in place, of which there is no other
    #[arg(long)]
    pub force: bool,
    /// One JSON object a line on standard output (docs/json.md)
    #[arg(long)]
    pub json: bool,
}
