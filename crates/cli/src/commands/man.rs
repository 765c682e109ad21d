//! `tenure man`: man pages, from the same definition as everything else.

use std::fs;
use std::path::{Path, PathBuf};

use crate::args::definition;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  tenure man ~/.local/share/man/man1         then `man tenure`, `man tenure-acquire`, …";

/// Write man pages into a folder
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where to; it is made if it does not exist
    pub directory: PathBuf,
}

/// Writes one page per command.
pub fn run(args: Args, output: &Output) -> Result<Exit, CommandError> {
    let cannot = |path: &Path, error: std::io::Error| {
        CommandError::said(Exit::Other, format!("{} cannot be written: {error}", path.display()))
    };
    fs::create_dir_all(&args.directory).map_err(|error| cannot(&args.directory, error))?;
    clap_mangen::generate_to(definition(), &args.directory)
        .map_err(|error| cannot(&args.directory, error))?;
    output.talk(&format!("man pages are in {}", args.directory.display()));
    Ok(Exit::Done)
}
