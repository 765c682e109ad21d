//! `tenure cluster restore`: a backup into a new cluster. The floor is asked for and never guessed: tokens that were
//! issued after the backup are known only to fences, logs and people.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream;
use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_core::Token;
use tenure_wire::BackupHead;

use crate::args::parse_token;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::words::span;

const EXAMPLES: &str = "\
Examples:
  tenure cluster restore tenure.backup --token-floor 1000000
  tenure cluster restore tenure.backup --token-floor 1000000 --holders-stopped

The cluster must be new: nobody has opened a session or written a register in it. It keeps its own id, every session \
of the backup ends, and tokens start above the floor. Until the longest allowed TTL has passed nothing is granted, \
because a holder of the old cluster may still be at work; --holders-stopped is your word that none is.

The floor must be above every token that was ever issued, also after the backup. Look at the marks in your fences, at \
the last tokens in your logs, and, if a node of the old cluster still answers, at `tenure cluster status` and \
`tenure history`. Too high costs nothing; too low would let an old holder's write pass for a new one's.";

/// How long it may take.
const WITHIN: Duration = Duration::from_secs(60);
/// Bytes of the file in one message.
const PIECE_BYTES: usize = 64 << 10;

/// Put a backup into a new cluster
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// A file of `tenure cluster backup`
    pub file: PathBuf,
    /// A number above every token ever issued, also after the backup
    #[arg(long, value_name = "N", value_parser = parse_token)]
    pub token_floor: Option<Token>,
    /// No holder of the old cluster is running any more: grant at once
    #[arg(long)]
    pub holders_stopped: bool,
}

/// Restores it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let (head, bytes) = read(&args.file)?;
    let Some(token_floor) = args.token_floor else { return Err(no_floor(&head)) };
    let send = |channel, bytes: Vec<u8>| async move {
        let holders_stopped = args.holders_stopped;
        let message = move |piece: &[u8]| proto::RestoreRequest {
            token_floor: token_floor.get(),
            holders_stopped,
            piece: piece.to_vec(),
        };
        let messages: Vec<_> = bytes.chunks(PIECE_BYTES).map(message).collect();
        ClusterClient::new(channel).restore(stream::iter(messages)).await
    };
    let answer = context.operate(bytes, WITHIN, send).await?;
    context.output.tell(
        || json!({"token_floor": answer.token_floor, "grants_in_ms": answer.grants_in_ms}),
        |_| {
            let grants = match answer.grants_in_ms {
                0 => "it grants from now on".to_owned(),
                millis => {
                    format!("it grants nothing for {}, until no old holder can be at work", span(millis))
                }
            };
            format!("restored; tokens start above {}; {grants}", answer.token_floor)
        },
    )?;
    Ok(Exit::Done)
}

/// Reads the file, and looks at it before anybody is asked: a damaged one is told of here.
fn read(file: &Path) -> Result<(BackupHead, Vec<u8>), CommandError> {
    let unreadable =
        |why: String| CommandError::said(Exit::Other, format!("{} cannot be read: {why}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    let (head, _) =
        tenure_wire::read_backup(&mut bytes.as_slice()).map_err(|error| unreadable(error.to_string()))?;
    Ok((head, bytes))
}

fn no_floor(head: &BackupHead) -> CommandError {
    CommandError::with_hint(
        Exit::Usage,
        format!(
            "--token-floor is missing: the backup knows tokens up to {}, but not those that were issued after it",
            head.last_token
        ),
        "give a number above every token ever issued: look at the marks in your fences, at the last tokens in your \
         logs, and at `tenure history` and `tenure cluster status` if a node of the old cluster still answers",
    )
}
