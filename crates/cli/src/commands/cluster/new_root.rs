//! `tenure cluster new-root`: the file from which a cluster is secured.

use std::io::{IsTerminal, Write};

use rustix::fs::{FileType, Mode, fchmod, fstat};
use tenure_clock::{Clock, SystemClock};
use tenure_tls::Root;

use crate::error::CommandError;
use crate::exit::Exit;

const HELP: &str = "\
The root is a certificate authority in one file: its certificate and its key (P-256, valid for ten years). Whoever has \
the file is an administrator of the cluster and can start a node of it. Nothing else has to be made or installed: every \
node signs its own certificates with it when it starts.

Secure three nodes:
  tenure cluster new-root > root.pem
  scp root.pem db-1: && scp root.pem db-2: && scp root.pem db-3:      mode 0600, or it is refused
  tenure serve --root root.pem --node 1 --peers $peers --listen 10.0.0.1:7400      on each, with its own number
  tenure --root root.pem --endpoints 10.0.0.1:7400 cluster status

Applications need the certificate alone, never the key. This prints it:
  openssl x509 -in root.pem > ca.pem

Replace a root: put a new block in front of the old one (`cat new.pem old.pem > root.pem`), first behind it on all \
nodes, then in front, then take the old one away. The first block signs, all are believed.

Keep a copy where you keep your other keys. If all copies are lost the cluster goes on; it just takes no new node, and \
after a restart its nodes need a root again.";

/// Print a new root: the one file that secures a cluster
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {}

/// Does it.
pub fn run(Args {}: Args) -> Result<Exit, CommandError> {
    let mut stdout = std::io::stdout();
    if stdout.is_terminal() {
        return Err(CommandError::with_hint(
            Exit::Usage,
            "a private key is not printed to a terminal",
            "tenure cluster new-root > root.pem",
        ));
    }
    let failed = |what: &str| CommandError::said(Exit::Other, format!("no root was made: {what}"));
    let root = Root::generate(SystemClock.wall()).map_err(|error| failed(&error.to_string()))?;
    // The shell has created the file for everybody to read. It is closed before the key is in it.
    if fstat(&stdout).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile) {
        fchmod(&stdout, Mode::RUSR | Mode::WUSR).map_err(|error| failed(&error.to_string()))?;
    }
    let written = stdout.write_all(root.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| failed(&error.to_string()))?;
    Ok(Exit::Done)
}
