//! vmferry: moves VM images between hosts.
//!
//! This crate is the command: it parses words, starts receivers, shows progress and turns results
//! into exit codes. The work is done in the libraries beside it.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the one room that prints
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bootstrap;
mod cli;
mod commands;
mod ends;
mod exit;
mod inspect;
mod keys;
mod log;
mod metrics;
mod narrator;
mod place;
mod progress;
mod pull;
mod remote;
mod report;
mod stop;
mod terminal;
mod verdict;

use std::process::ExitCode;

use proto::control::Failure;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let json = words.iter().any(|word| word == "--json");
    let cli = cli::Cli::read(words).unwrap_or_else(|e| {
        // A script that asked for objects gets one, also when it asked wrongly.
        if json && e.use_stderr() {
            let text = e.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            report::failed_object(&Failure::new(exit::USAGE, first));
        }
        e.exit()
    });
    match cli.command {
        cli::Command::Send(args) => commands::send::run(&args),
        cli::Command::Receive(args) => match &args.into {
            Some(folder) => commands::serve::run(&args, folder),
            None => commands::receive::run(),
        },
        cli::Command::Verify(args) => commands::verify::run(&args),
        cli::Command::Status(args) => commands::status::run(&args),
        cli::Command::Drop(args) => commands::drop::run(&args),
        cli::Command::Key(args) => commands::key::show(&args),
        cli::Command::Allow(args) => commands::key::allow(&args),
        cli::Command::Trust(args) => commands::key::trust(&args),
    }
}
