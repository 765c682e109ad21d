//! `tenure cluster backup`: the whole state of the cluster in one checksummed file. The file gets its name
//! only when it is complete and has been read back; an older file of that name stays until then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_wire::{BackupEnd, BackupPart, BackupReader, WireError};

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::render::words::{count, grouped};

const EXAMPLES: &str = "\
Examples:
  tenure cluster backup tenure.backup        from whichever node answers, while the cluster serves

The backup has no sessions: a lease that is held now is in its history as expired, and ephemeral registers are left out. \
It knows the last token issued when it was taken. Tokens issued later are not in it, which is why a restore asks for a \
floor: keep the marks of your fences, or your logs, with it.";

/// How long the first piece may take.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// How long any further piece may take.
const PIECE_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of a file that are read at once.
const READ_BYTES: usize = 128 << 10;

/// Write everything the cluster knows into a file, while it serves
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where to write it
    pub file: PathBuf,
    /// Take what the node that answers has applied, without a leader: for when a majority of the nodes is
    /// lost. What only the lost ones knew is not in it
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
    let BackupEnd { head, bytes, records, .. } = taken?;
    context.output.tell(
        || {
            json!({
                "file": args.file.display().to_string(), "bytes": bytes, "records": records,
                "last_token": head.last_token, "revision": head.revision.get(),
                "cluster": tenure_wire::words::hex(&head.cluster),
            })
        },
        |_| {
            format!(
                "{}: {bytes} bytes, {}, checked; cluster {}, revision {}, last token {}",
                args.file.display(),
                if records == 1 {
                    count(1, "record", "records")
                } else {
                    format!("{} records", grouped(records))
                },
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
) -> Result<BackupEnd, CommandError> {
    let mut output = BufWriter::new(create(partial).map_err(|error| failed(partial, &error))?);
    let send = |channel, request| async move { ClusterClient::new(channel).backup(request).await };
    let mut pieces = context.operate(request, BEGIN_WITHIN, send).await?;
    let mut progress = Progress::new(context.output, "backing up", None);
    let (mut reader, mut parts) = (BackupReader::default(), Vec::new());
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
        reader.push(&piece, &mut parts).map_err(|error| not_whole(&error))?;
        parts.clear();
        bytes += piece.len() as u64;
        progress.reached(bytes, reader.records());
    }
    drop(progress);
    output.flush().and_then(|()| output.get_ref().sync_all()).map_err(|error| failed(partial, &error))?;
    // Read back as a restore would: a stream that ended early looks like any other file.
    let end = check(partial, context.output).map_err(|error| not_whole(&error))?;
    fs::rename(partial, file).map_err(|error| failed(file, &error))?;
    Ok(end)
}

fn not_whole(error: &WireError) -> CommandError {
    CommandError::said(Exit::Other, format!("what arrived is no whole backup: {error}"))
}

/// Reads a file as a restore would, to its end, and keeps nothing of it.
pub(super) fn check(file: &Path, output: &Output) -> Result<BackupEnd, WireError> {
    let mut open = ReadAhead::open(file)?;
    let mut progress = Progress::new(output, "checking", Some(open.length));
    while open.next()?.is_some() {
        progress.reached(open.read, open.reader.records());
    }
    open.reader.finish()
}

/// A backup file, read piece by piece, and what has been seen in it so far.
pub(super) struct ReadAhead {
    file: File,
    /// How many bytes the file has.
    pub length: u64,
    /// How many of them were read.
    pub read: u64,
    /// What they were.
    pub reader: BackupReader,
    parts: Vec<BackupPart>,
}

impl ReadAhead {
    pub fn open(file: &Path) -> Result<ReadAhead, WireError> {
        let file = File::open(file).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Ok(ReadAhead { file, length, read: 0, reader: BackupReader::default(), parts: Vec::new() })
    }

    /// The next bytes of the file; `None` at its end.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let mut bytes = vec![0; READ_BYTES];
        let many = self.file.read(&mut bytes).map_err(unreadable)?;
        if many == 0 {
            return Ok(None);
        }
        bytes.truncate(many);
        self.read += many as u64;
        self.reader.push(&bytes, &mut self.parts)?;
        self.parts.clear();
        Ok(Some(bytes))
    }
}

fn unreadable(source: io::Error) -> WireError {
    WireError::Io { what: "backup", source }
}

/// Creates a file that only this user may read, in place of what an earlier attempt left: a backup holds all
/// registers.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
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
