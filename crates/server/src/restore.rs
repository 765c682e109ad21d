//! Restoring a backup that arrives as a stream: what is readable goes into the log piece by piece, and memory
//! holds one message and one piece, whatever the backup's size.
//!
//! The machine decides what a restore means and stages the pieces; here they are read and sent in order.
//! Every step may be sent again, so a leader that changes in the middle costs a moment: the same step goes to
//! the next one. A restore that breaks off all the same is continued by whoever sends the same backup again,
//! through any node.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Command, Done, Identity, RESTORE_KEPT_FOR, RestoreBegin, RestoreId, Token};
use tenure_wire::{ApiError, BackupPart, BackupReader, Code, WireError, proto, words};
use tokio::time::Instant;

use crate::calls::failed;
use crate::failure::Failure;
use crate::node::{Node, Submission};

/// How long one step is sent again while no leader answers: several elections.
const STEP_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait before a step is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Restores that one node reads at a time. Only one can succeed; the others are those of operators who tried
/// again.
pub(crate) const RESTORES_MAX: usize = 4;

/// One restore on its way through this node.
pub(crate) struct Restore<'a> {
    node: &'a Node,
    /// Who asked for it.
    identity: &'a Identity,
    id: RestoreId,
    token_floor: Token,
    holders_stopped: bool,
    reader: BackupReader,
    parts: Vec<BackupPart>,
    /// How many pieces are staged: those that were before are not sent again.
    staged: u64,
    /// The same backup was restored already, and its answer was lost.
    restored: Option<proto::RestoreResponse>,
}

impl<'a> Restore<'a> {
    /// A restore as its first message asks for it.
    pub fn new(
        node: &'a Node,
        identity: &'a Identity,
        first: &proto::RestoreRequest,
    ) -> Result<Restore<'a>, ApiError> {
        let token_floor = Token::try_from(first.token_floor).map_err(|_| {
            ApiError::new(Code::InvalidToken, "a restore needs a token floor between 1 and 2^53 - 1")
                .hint("give a number above every token ever seen: fence marks, logs, `tenure history`")
        })?;
        // Who does not name the backup cannot continue: then it is a restore of its own.
        let id = match <[u8; 16]>::try_from(first.checksum.as_slice()) {
            Ok(checksum) => RestoreId::new(checksum),
            Err(_) if first.checksum.is_empty() => node.draw_restore(),
            Err(_) => return Err(ApiError::invalid("the checksum of a backup has 16 bytes")),
        };
        Ok(Restore {
            node,
            identity,
            id,
            token_floor,
            holders_stopped: first.holders_stopped,
            reader: BackupReader::default(),
            parts: Vec::new(),
            staged: 0,
            restored: None,
        })
    }

    /// Takes the next bytes of the backup, and stages what has become readable.
    pub async fn take(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        let mut parts = std::mem::take(&mut self.parts);
        let read = self.reader.push(bytes, &mut parts).map_err(|error| unreadable(&error));
        for part in parts.drain(..) {
            self.stage(part).await?;
        }
        self.parts = parts;
        read
    }

    async fn stage(&mut self, part: BackupPart) -> Result<(), ApiError> {
        let command = match part {
            BackupPart::Base(base) => Command::RestoreBegin(Box::new(RestoreBegin {
                id: self.id,
                base: *base,
                token_floor: self.token_floor,
                holders_stopped: self.holders_stopped,
            })),
            BackupPart::Piece(piece) if piece.number < self.staged || self.restored.is_some() => {
                return Ok(());
            }
            BackupPart::Piece(mut piece) => {
                piece.id = self.id;
                Command::RestorePiece(piece)
            }
        };
        match self.step(command).await? {
            Done::Staged { pieces } => self.staged = pieces,
            done => self.restored = Some(response(&done)?),
        }
        Ok(())
    }

    /// Everything has arrived: makes it visible, if it was a whole backup.
    pub async fn finish(mut self) -> Result<proto::RestoreResponse, ApiError> {
        let end = std::mem::take(&mut self.reader).finish().map_err(|error| unreadable(&error))?;
        if let Some(restored) = self.restored {
            return Ok(restored);
        }
        let commit = Command::RestoreCommit {
            id: self.id,
            pieces: end.pieces,
            records: end.records,
            checksum: end.pieces_checksum,
        };
        let answer = response(&self.step(commit).await?)?;
        tracing::info!(records = end.records, bytes = end.bytes, "a backup was restored");
        Ok(answer)
    }

    /// Puts one step through the log, here or at the leader; again while nobody leads, because every step can
    /// be repeated.
    async fn step(&self, command: Command) -> Result<Done, ApiError> {
        let until = Instant::now() + STEP_WITHIN;
        // A piece is large: it is shared, not copied.
        let command = Arc::new(self.node.conceal(command));
        loop {
            let step = Submission::Command(command.clone());
            let failure = match self.node.answer_to(self.identity, step).await {
                Ok(answer) => return Ok(answer?),
                Err(failure) => failure,
            };
            let passes = matches!(
                failure,
                Failure::NoLeader { .. } | Failure::Unknown { .. } | Failure::Overloaded { .. }
            );
            if !passes || Instant::now() >= until {
                return Err(self.interrupted(failure));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// What is said when a step had no answer for too long.
    fn interrupted(&self, failure: Failure) -> ApiError {
        let upgrade = matches!(failure, Failure::NeedsUpgrade { .. });
        let error = failed(failure);
        if upgrade {
            return error;
        }
        let minutes = RESTORE_KEPT_FOR.as_secs() / 60;
        error.hint(format!(
            "{} pieces of the backup are staged and nothing is restored yet; run the same command again within {minutes} \
             minutes, and it goes on with the next piece",
            self.staged
        ))
    }
}

fn response(done: &Done) -> Result<proto::RestoreResponse, ApiError> {
    match done {
        Done::Restored { token_floor, grants_in } => Ok(proto::RestoreResponse {
            token_floor: token_floor.get(),
            grants_in_ms: words::millis(*grants_in),
        }),
        _ => Err(ApiError::new(Code::Internal, "the machine answered something else than was asked")),
    }
}

fn unreadable(error: &WireError) -> ApiError {
    ApiError::new(Code::InvalidArgument, format!("the backup cannot be read: {error}"))
}
