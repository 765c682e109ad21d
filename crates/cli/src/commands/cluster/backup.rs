//! `tenure cluster backup`: everything the cluster knows, in one checksummed file. The file gets its name only when
//! it is whole and has been read back; whatever stood there before stays until then.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_wire::BackupHead;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure cluster backup tenure.backup        from whichever node answers, while the cluster serves

The backup knows the last token issued when it was taken. Tokens issued later are not in it, which is why a restore \
asks for a floor: keep the marks of your fences, or your logs, with it.";

/// How long the first piece may take.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// How long any further piece may take.
const PIECE_WITHIN: Duration = Duration::from_secs(60);
/// Progress is told after so many bytes.
const REPORT_EVERY: u64 = 64 << 20;

/// Write everything the cluster knows into a file, while it serves
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where to write it
    pub file: PathBuf,
    /// Take what the node that answers has applied, without a leader: for when a majority of the nodes is lost. What
    /// only the lost ones knew is not in it
    #[arg(long)]
    pub stale: bool,
}

/// Takes the backup.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let partial = partial(&args.file);
    let request = proto::BackupRequest { stale: args.stale };
    let taken = take(&args.file, &partial, request, context).await;
    if taken.is_err() {
        // An incomplete backup must not be mistaken for one. It may not exist at all.
        let _ = fs::remove_file(&partial);
    }
    let (head, bytes) = taken?;
    context.output.tell(
        || {
            json!({
                "file": args.file.display().to_string(), "bytes": bytes, "last_token": head.last_token,
                "revision": head.revision.get(), "cluster": tenure_wire::words::hex(&head.cluster),
            })
        },
        |_| {
            format!(
                "{}: {bytes} bytes, checked; cluster {}, revision {}, last token {}",
                args.file.display(),
                tenure_wire::words::hex(&head.cluster),
                head.revision.get(),
                head.last_token,
            )
        },
    )?;
    Ok(Exit::Done)
}

async fn take(
    file: &Path,
    partial: &Path,
    request: proto::BackupRequest,
    context: &Context<'_>,
) -> Result<(BackupHead, u64), CommandError> {
    let mut output = BufWriter::new(File::create(partial).map_err(|error| failed(partial, &error))?);
    let send = |channel, request| async move { ClusterClient::new(channel).backup(request).await };
    let mut pieces = context.operate(request, BEGIN_WITHIN, send).await?;
    let mut bytes = 0;
    loop {
        let broken = |why: String| {
            CommandError::said(Exit::Unreachable, format!("the backup broke off after {bytes} bytes: {why}"))
        };
        let piece = tokio::time::timeout(PIECE_WITHIN, pieces.message())
            .await
            .map_err(|_| broken(format!("nothing came for {PIECE_WITHIN:?}")))?
            .map_err(|status| broken(status.message().to_owned()))?;
        let Some(proto::BackupResponse { piece }) = piece else { break };
        output.write_all(&piece).map_err(|error| failed(partial, &error))?;
        let before = bytes;
        bytes += piece.len() as u64;
        if before / REPORT_EVERY != bytes / REPORT_EVERY {
            context.output.talk(&format!("{} MiB …", bytes >> 20));
        }
    }
    output.flush().and_then(|()| output.get_ref().sync_all()).map_err(|error| failed(partial, &error))?;
    let head = check(partial)?;
    fs::rename(partial, file).map_err(|error| failed(file, &error))?;
    Ok((head, bytes))
}

/// Reads the file back, as a restore would: a stream that ended early looks like any other file.
fn check(file: &Path) -> Result<BackupHead, CommandError> {
    let mut input = BufReader::new(File::open(file).map_err(|error| failed(file, &error))?);
    let read = tenure_wire::read_backup(&mut input);
    read.map(|(head, _)| head)
        .map_err(|error| CommandError::said(Exit::Other, format!("what arrived is no whole backup: {error}")))
}

/// The name under which a backup is written until it is whole.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    file.with_file_name(name)
}

fn failed(file: &Path, error: &io::Error) -> CommandError {
    CommandError::said(Exit::Other, format!("{} cannot be written: {error}", file.display()))
}
