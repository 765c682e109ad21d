//! `tenure cluster restore`: a backup into a new cluster. The token floor must be given and is never guessed:
//! tokens that were issued after the backup are known only to fences, logs and people.
//!
//! The file is checked to its end before anything is sent, and then sent as it is read. It is named by its
//! checksum, so a connection that breaks, or a node that stops, costs a moment: the file is sent again over
//! another endpoint, and the cluster goes on with the first piece that it does not have.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream;
use serde_json::json;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_client::{CallError, Channel, Response, Status, proto};
use tenure_core::Token;
use tenure_wire::{BackupEnd, BackupHead, WireError};
use tokio::sync::mpsc;

use super::backup::{ReadAhead, check};
use crate::args::parse_token;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::render::words::{grouped, span};

const EXAMPLES: &str = "\
Examples:
  tenure cluster restore tenure.backup --token-floor 1000000
  tenure cluster restore tenure.backup --token-floor 1000000 --holders-stopped

The cluster must be new: nobody has opened a session or written a register in it, and nobody does before the restore has \
ended. It keeps its own id, every session of the backup ends, and tokens start above the floor. Until the longest allowed \
TTL has passed nothing is granted, because a holder of the old cluster may still be at work; --holders-stopped is your \
word that none is.

Nothing is visible before all of the backup has arrived. If the restore breaks off, run the same command again within ten \
minutes: it goes on where it stopped.

The floor must be above every token that was ever issued, also after the backup. Look at the marks in your fences, at \
the last tokens in your logs, and, if a node of the old cluster still answers, at `tenure cluster status` and \
`tenure history`. Too high costs nothing; too low would let an old holder's write pass for a new one's.";

/// How long the store may take to read on. A step that finds no leader is repeated there for half of that.
const MOVES_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take to answer when everything was sent.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// For how long the restore may get no further than it was, however often it is sent again.
const FURTHER_WITHIN: Duration = Duration::from_secs(300);
/// Messages that wait to be sent.
const MESSAGES_WAITING_MAX: usize = 4;

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
    let backup = check(&args.file, context.output).map_err(|error| unreadable(&args.file, &error))?;
    let Some(token_floor) = args.token_floor else { return Err(no_floor(&backup.head)) };
    let how = proto::RestoreRequest {
        token_floor: token_floor.get(),
        holders_stopped: args.holders_stopped,
        piece: Vec::new(),
        checksum: backup.checksum.to_vec(),
    };
    let furthest = AtomicU64::new(0);
    let sending = context.send_repeatably(|channel, attempt| {
        if attempt.number > 1 {
            context
                .output
                .talk("sending again; the cluster goes on with the first piece that it does not have");
        }
        send(channel, &args.file, how.clone(), context.output, &furthest)
    });
    let answer = tokio::select! {
        answer = sending => answer.map_err(interrupted)?,
        () = gets_no_further(&furthest) => {
            return Err(resumable(format!("the restore got no further for {FURTHER_WITHIN:?}")));
        }
    };
    let BackupEnd { records, bytes, .. } = backup;
    context.output.tell(
        || {
            json!({
                "token_floor": answer.token_floor, "grants_in_ms": answer.grants_in_ms,
                "records": records, "bytes": bytes,
            })
        },
        |_| {
            let grants = match answer.grants_in_ms {
                0 => "it grants from now on".to_owned(),
                millis => {
                    format!("it grants nothing for {}, until no old holder can be at work", span(millis))
                }
            };
            let records = grouped(records);
            format!("restored {records} records; tokens start above {}; {grants}", answer.token_floor)
        },
    )?;
    Ok(Exit::Done)
}

/// Sends the file over one connection.
async fn send(
    channel: Channel,
    file: &Path,
    how: proto::RestoreRequest,
    output: &Output,
    furthest: &AtomicU64,
) -> Result<Response<proto::RestoreResponse>, Status> {
    let (sender, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
    let messages = stream::unfold(receiver, |mut receiver: mpsc::Receiver<proto::RestoreRequest>| async {
        receiver.recv().await.map(|message| (message, receiver))
    });
    let mut client = ClusterClient::new(channel);
    let call = client.restore(messages);
    let feed = feed(file, how, output, furthest, sender);
    tokio::pin!(call, feed);
    tokio::select! {
        biased;
        answer = &mut call => return answer,
        fed = &mut feed => fed?,
    }
    let late = |_| Status::deadline_exceeded(format!("no answer within {ANSWERS_WITHIN:?}"));
    tokio::time::timeout(ANSWERS_WITHIN, call).await.map_err(late)?
}

/// Reads the file into the messages, as fast as they are taken.
async fn feed(
    file: &Path,
    mut how: proto::RestoreRequest,
    output: &Output,
    furthest: &AtomicU64,
    sender: mpsc::Sender<proto::RestoreRequest>,
) -> Result<(), Status> {
    // It was read before; what changed meanwhile is not the backup that was checked.
    let changed = |error: WireError| Status::invalid_argument(format!("the file changed meanwhile: {error}"));
    let mut file = ReadAhead::open(file).map_err(changed)?;
    let mut progress = Progress::new(output, "restoring", Some(file.length));
    while let Some(piece) = file.next().map_err(changed)? {
        how.piece = piece;
        match tokio::time::timeout(MOVES_WITHIN, sender.send(how.clone())).await {
            Ok(Ok(())) => {}
            // The call has ended, and says why.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => {
                return Err(Status::deadline_exceeded(format!("nothing was read for {MOVES_WITHIN:?}")));
            }
        }
        progress.reached(file.read, file.reader.records());
        furthest.fetch_max(file.read, Relaxed);
    }
    Ok(())
}

/// Returns when the restore has come no further for too long.
async fn gets_no_further(furthest: &AtomicU64) {
    let mut before = None;
    loop {
        let now = furthest.load(Relaxed);
        if before == Some(now) {
            return;
        }
        before = Some(now);
        tokio::time::sleep(FURTHER_WITHIN).await;
    }
}

/// A restore that broke off can be continued; that is the next step whatever broke it.
fn interrupted(error: CallError) -> CommandError {
    match error {
        CallError::Refused(_) => CommandError::Call(error),
        CallError::Unreachable { .. } | CallError::Unanswered { .. } => resumable(error.to_string()),
    }
}

fn resumable(message: String) -> CommandError {
    CommandError::with_hint(
        Exit::Unreachable,
        message,
        "run the same command again within ten minutes, with the endpoints that answer: it goes on where it stopped; \
         `tenure cluster status` shows what is staged",
    )
}

fn unreadable(file: &Path, error: &WireError) -> CommandError {
    CommandError::said(Exit::Other, format!("{} cannot be read: {error}", file.display()))
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
