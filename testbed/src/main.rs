//! `testbed`: the test bed by hand and for tests of other packages.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod shell;
mod soak;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprint!("testbed: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprint!(": {cause}");
                source = cause.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
