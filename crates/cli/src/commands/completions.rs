//! `tenure completions`: for the shell, from the same definition as everything else.

use clap_complete::Shell;

use crate::args::definition;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  source <(tenure completions bash)
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish";

/// Print the completions of a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Which shell
    pub shell: Shell,
}

/// Prints them.
pub fn run(args: Args) -> Result<Exit, CommandError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "tenure", &mut text);
    // Through a buffer: the generator panics where writing fails, and a closed pipe is no error.
    std::io::Write::write_all(&mut std::io::stdout().lock(), &text)?;
    Ok(Exit::Done)
}
