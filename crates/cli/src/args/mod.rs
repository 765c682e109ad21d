//! The command line in one definition, from which parsing, help, completions and man pages are derived. The
//! arguments of each command are in its file under `commands/`.

mod duration;
mod help;
mod tls;
mod values;

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tenure_client::{Credential, Endpoints};
use tenure_tls::TlsError;

pub use duration::Length;
pub use tls::TlsArgs;
pub use values::{Bytes, GuardArgs, ModeArg, WaitArg, default_holder, parse_token};

use crate::commands;
use crate::error::CommandError;
use crate::exit::Exit;

/// The TTL of a session that names none.
pub const TTL_DEFAULT: Length = Length::seconds(10);

/// Leases with fencing tokens: time-bounded, exclusive authority over named resources.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, disable_help_subcommand = true)]
#[command(long_about = help::ABOUT, after_long_help = help::AFTER)]
pub struct Cli {
    /// What applies to every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What applies to every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Where the store is: one or more host:port, with commas in between. Any one is enough, the rest are
    /// for the day on which that one is down
    #[arg(long, global = true, env = "TENURE_ENDPOINTS", value_name = "LIST", default_value_t = Endpoints::default())]
    pub endpoints: Endpoints,
    /// Whether the endpoints were named, or are only the default.
    #[arg(skip)]
    pub endpoints_named: bool,
    /// What to present: a file that `tenure auth new` wrote, or one with a JSON web token. Its endpoints are used
    /// unless others are named
    #[arg(long, global = true, env = "TENURE_CREDENTIAL", value_name = "FILE")]
    pub credential: Option<PathBuf>,
    /// How it is reached over TLS.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// How long to go on asking a store that has no leader or does not answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s")]
    pub timeout: Length,
    /// Print one JSON object per line, with stable fields; errors, too, on stderr
    #[arg(long, global = true)]
    pub json: bool,
    /// Whether to colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, hide_possible_values = true)]
    pub color: ColorChoice,
}

impl Globals {
    /// The same, with endpoints that carry the credential, and are reached over TLS if that was asked for or the
    /// credential says so.
    pub fn secured(mut self) -> Result<Globals, CommandError> {
        let usage = |message: String| CommandError::said(Exit::Usage, message);
        self.load_credential()?;
        let credential = self.endpoints.credential().cloned();
        let tls = match (self.tls.client().map_err(|error| usage(error.to_string()))?, &credential) {
            (Some(_), Some(_)) if self.tls.root.is_some() || self.tls.cert.is_some() => {
                let message = "a certificate and a credential both say who you are".to_owned();
                let hint = "leave out --credential (TENURE_CREDENTIAL), or --root and --cert (TENURE_ROOT, TENURE_CERT)";
                return Err(CommandError::with_hint(Exit::Usage, message, hint));
            }
            (Some(tls), _) => Some(tls),
            (None, Some(credential)) => {
                credential.tls(self.tls.server_name.clone()).map_err(|error| usage(error.to_string()))?
            }
            (None, None) => None,
        };
        match tls {
            Some(tls) => self.endpoints = self.endpoints.secured(tls),
            None if self.endpoints.is_secured() => {
                let hint = "name the file with --ca or TENURE_CA, or the root with --root or TENURE_ROOT";
                let message = "https:// needs the certificate of an authority".to_owned();
                return Err(CommandError::with_hint(Exit::Usage, message, hint));
            }
            self.endpoints = self.endpoints.with_credential(credential);
        }
        let usage = |error: TlsError| CommandError::said(Exit::Usage, error.to_string());
        self.endpoints = self.tls.secure(self.endpoints).map_err(usage)?;
        if self.endpoints.is_secured() && self.endpoints.tls().is_none() {
            let hint = "name the file with --ca or TENURE_CA, or the root with --root or TENURE_ROOT";
            let message = "https:// needs the certificate of an authority".to_owned();
            return Err(CommandError::with_hint(Exit::Usage, message, hint));
        }
        Ok(self)
    }

    /// Reads the credential, if there is one; from then on the endpoints carry it.
    fn load_credential(&mut self) -> Result<(), CredentialError> {
        let Some(path) = self.credential.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(());
        };
        let credential = Credential::load(path)?;
        if let Some(endpoints) = credential.endpoints().filter(|_| !self.endpoints_named) {
            self.endpoints = endpoints;
        }
        self.endpoints = self.endpoints.clone().with_credential(credential);
        Ok(())
    }
}

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always, with tables as on a terminal.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node: a single durable one, or a member of a cluster
    Serve(commands::serve::Args),
    /// Serve the clients of this host over a unix socket: one renewal message per tick for all of them
    Agent(commands::agent::Args),
    /// Run a command only while holding a resource
    #[cfg(target_os = "linux")]
    Run(commands::run::Args),
    /// Run a command only while leading; queue again after any loss
    #[cfg(target_os = "linux")]
    Elect(commands::elect::Args),
    /// What asks the store.
    #[command(flatten)]
    Store(StoreCommand),
    /// Run a demo: what goes wrong without the protection, and what happens with it
    #[cfg(feature = "demo")]
    Demo(commands::demo::Args),
    /// Put load on a store and measure it: this one, or a peer by the same driver
    #[cfg(feature = "bench")]
    Bench(commands::bench::Args),
    /// Print the completions of a shell
    Completions(commands::completions::Args),
    /// Write man pages into a folder
    Man(commands::man::Args),
}

/// What asks the store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Take one or several resources: all or none, now or in turn
    Acquire(commands::acquire::Args),
    /// Give a lease back
    Release(commands::release::Args),
    /// Hand a lease to a session that waits for it, in one step
    Transfer(commands::transfer::Args),
    /// End the leases of a resource, as an administrator
    Revoke(commands::revoke::Args),
    /// Open, renew, close and list sessions
    Session(commands::session::Args),
    /// Show one resource: who holds it, under which token, what is left
    Get(commands::get::Args),
    /// Show who leads an election, or that nobody does
    Leader(commands::leader::Args),
    /// List the resources that are held
    Ls(commands::ls::Args),
    /// Follow what changes, as it changes
    Watch(commands::watch::Args),
    /// Export past events as JSON lines, without a gap
    Events(commands::events::Args),
    /// Show the past holders of a resource, and why each lease ended
    History(commands::history::Args),
    /// Say in words who holds a resource, what is left, who waits and why
    Explain(commands::explain::Args),
    /// Show the cluster and its leases at a glance, kept up to date
    Top(commands::top::Args),
    /// Read and write registers: small values, guarded by leases where asked for
    Kv(commands::kv::Args),
    /// Check the five numbers of a lease, price them, or measure and recommend
    Tune(commands::tune::Args),
    /// See and look after fences: where tokens are checked
    Fence(commands::fence::Args),
    /// Look after the cluster
    Cluster(commands::cluster::Args),
    /// Issue and revoke credentials; see who one is and what one may do
    Auth(commands::auth::Args),
    /// Store, remove, list and try out policies: who may do what where
    Policy(commands::policy::Args),
}

/// The definition, with the commands in groups.
pub fn definition() -> clap::Command {
    help::grouped(Cli::command())
}

/// Reads the command line.
pub fn parse() -> Result<Cli, clap::Error> {
    let matches = definition().try_get_matches()?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let source = matches.value_source("endpoints");
    cli.globals.endpoints_named = source.is_some_and(|source| source != ValueSource::DefaultValue);
    Ok(cli)
}

/// Whether a command line that could not be read was meant for a command that passes on the exit code of
/// another: its first word that is neither an option nor the value of one says so.
pub fn runs_a_command(mut words: impl Iterator<Item = std::ffi::OsString>) -> bool {
    words.next();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("run" | "elect") => return true,
            Some(option) if option.starts_with("--") => {
                if option != "--json" && !option.contains('=') {
                    words.next();
                }
            }
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests;
