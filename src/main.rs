//! vmferry: moves VM images between hosts.
//!
//! This crate is the command: it parses words, starts receivers, shows progress and turns results
//! into exit codes. The work is done in the libraries beside it.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the one room that prints
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bootstrap;
mod cli;
mod commands;
mod exit;
mod narrator;
mod place;
mod progress;
mod pull;
mod remote;
mod report;
mod stop;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::read(std::env::args_os()).unwrap_or_else(|e| e.exit());
    match cli.command {
        cli::Command::Send(args) => commands::send::run(&args),
        cli::Command::Receive(args) => commands::receive::run(&args),
    }
}
