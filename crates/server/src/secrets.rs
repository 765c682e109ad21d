//! What becomes of secrets on their way into the log, and on the way back to those who know them.
//!
//! From format version 2 on, log, snapshots and backups hold a hash of a session's secret and of a nonce, so whoever
//! reads a disk can present neither. The hash is made where a command comes in: the machine compares what is stored with
//! what the command says, and its answers say what is stored. Here the caller's own secret is put back into them.
//!
//! **Sessions from before the raise keep their form until they end.** A node that has applied the raise has also applied
//! every open in plain form, because the leader seals nothing behind a raise before it is applied (`leader_loop.rs`). So
//! what a node at version 2 does not know in plain form is hashed or has ended, however far behind the node is.
//!
//! **128 bits of SHA-256 are enough.** The secret has 128 bits itself, and is compared with the hash of one session: to
//! find something that fits takes 2^128 tries either way. Two nonces with one hash help only whoever drew both.
//!
//! **An open that carries a nonce gets the secret that follows from it**, so that a repeated open finds the same session
//! and the same id at any node. Whoever knows the nonce is the opener; a disk holds only its hash, from which the secret
//! does not follow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sha2::{Digest, Sha256};
use tenure_core::{
    AcquireBy, Answer, Command, Done, FormatVersion, Machine, Nonce, Open, Secret, SecretForm, SessionId,
};
use tokio::sync::Notify;

/// One hash for each use, so that none can stand for another.
mod domain {
    pub const SECRET: &[u8] = b"tenure session secret\0";
    pub const NONCE: &[u8] = b"tenure session nonce\0";
    pub const SECRET_OF_NONCE: &[u8] = b"tenure secret of nonce\0";
}

fn hash(domain: &[u8], bits: &[u8; 16]) -> [u8; 16] {
    let digest = Sha256::new().chain_update(domain).chain_update(bits).finalize();
    let (half, _) = digest.split_at(16);
    half.try_into().expect("it has 32 bytes")
}

/// A secret as it is stored from format version 2 on.
pub(crate) fn stored(secret: Secret) -> Secret {
    match secret.form() {
        SecretForm::Plain => Secret::hashed(hash(domain::SECRET, secret.as_bytes())),
        SecretForm::Hashed => secret,
    }
}

/// A nonce as it is stored from format version 2 on.
pub(crate) fn stored_nonce(nonce: Nonce) -> Nonce {
    match nonce.form() {
        SecretForm::Plain => Nonce::hashed(hash(domain::NONCE, nonce.as_bytes())),
        SecretForm::Hashed => nonce,
    }
}

/// A session's id as it is stored from format version 2 on.
pub(crate) fn hashed_id(id: SessionId) -> SessionId {
    SessionId { secret: stored(id.secret), ..id }
}

/// A session's id as this machine has stored it, if it knows the session.
pub(crate) fn stored_id(id: SessionId, machine: &Machine) -> SessionId {
    match machine.secret_form(id.number) {
        Some(SecretForm::Hashed) => hashed_id(id),
        Some(SecretForm::Plain) | None => id,
    }
}

/// How far the state has come. Never falls, but when a restored backup brings plain nonces along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The agreed version knows no hashes.
    Plain,
    /// What is new is hashed; something from before is left.
    Mixed,
    /// Nothing in plain form is left.
    Hashed,
}

/// The stage of this node's state, readable without looking into the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedStage(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: AtomicU8,
    /// The raise to hashes was applied here, to a state that had seen sessions.
    raised: Notify,
}

impl SharedStage {
    pub fn get(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Plain,
            1 => Stage::Mixed,
            _ => Stage::Hashed,
        }
    }

    /// Takes in what was applied. The agreed version has been published before.
    pub fn applied(&self, machine: &Machine) {
        if self.set(machine) == 0 && self.get() != Stage::Plain && machine.sessions_opened() > 0 {
            self.0.raised.notify_one();
        }
    }

    /// Takes in what a snapshot brought.
    pub fn restored(&self, machine: &Machine) {
        self.set(machine);
    }

    fn set(&self, machine: &Machine) -> u8 {
        let stage = match (machine.format() >= FormatVersion::V2, machine.is_concealed()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        self.0.stage.swap(stage, Ordering::AcqRel)
    }

    /// Resolves when the raise was applied on this node to a state that had seen sessions, also if that was while the log
    /// was read at its start: then no snapshot has taken the place of what was written before.
    pub async fn raised(&self) {
        self.0.raised.notified().await;
    }
}

/// The secret that a caller knows, and what stands for it in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnSecret {
    plain: Secret,
    stored: Secret,
}

impl OwnSecret {
    fn conceal(secret: &mut Secret) -> Option<OwnSecret> {
        let plain = *secret;
        *secret = stored(plain);
        (plain.form() == SecretForm::Plain).then_some(OwnSecret { plain, stored: *secret })
    }

    /// Puts the caller's own secret back into an answer. Nobody else's is there in a form that could be used.
    pub fn give_back(&self, answer: &mut Answer) {
        let give_back = |id: &mut SessionId| {
            if id.secret == self.stored {
                id.secret = self.plain;
            }
        };
        match answer {
            Ok(Done::Opened { session, .. } | Done::Queued { session, .. }) => give_back(session),
            Ok(Done::Granted { grants, .. }) => {
                grants.iter_mut().for_each(|grant| give_back(&mut grant.session));
            }
            _ => {}
        }
    }
}

/// A command as it enters the log.
#[derive(Clone, Debug)]
pub(crate) struct Concealed {
    pub command: Command,
    /// The version that it is to be encoded in: the one that says which form its secrets have.
    pub version: FormatVersion,
    /// The secret that its caller knows, if another stands in the command.
    pub own: Option<OwnSecret>,
}

/// The part of a command that is secret. Every command has at most one.
enum SecretPart<'a> {
    Session(&'a mut SessionId),
    Open(&'a mut Open),
    Nonce(&'a mut Nonce),
    Nothing,
}

fn secret_part(command: &mut Command) -> SecretPart<'_> {
    match command {
        Command::Open(open) => SecretPart::Open(open),
        Command::Acquire(acquire) => match &mut acquire.by {
            AcquireBy::Session(by) => SecretPart::Session(&mut by.session),
            AcquireBy::Opening(open) => SecretPart::Open(open),
        },
        Command::CancelNonce { nonce } => SecretPart::Nonce(nonce),
        Command::Close { by, .. }
        | Command::Cancel { by, .. }
        | Command::Release { by, .. }
        | Command::Transfer { by, .. } => SecretPart::Session(&mut by.session),
        Command::Write(write) => match &mut write.by {
            Some(by) => SecretPart::Session(&mut by.session),
            None => SecretPart::Nothing,
        },
        Command::Seen { session, .. } | Command::Paused { session, .. } => SecretPart::Session(session),
        Command::Undo { session, .. } => session.as_mut().map_or(SecretPart::Nothing, SecretPart::Session),
        Command::As(attributed) => secret_part(&mut attributed.command),
        // No `_`: whoever adds a command says here what of it is secret. A credential's hash is made by whoever asks.
        Command::Revoke { .. }
        | Command::Barrier { .. }
        | Command::Arm { .. }
        | Command::Refused { .. }
        | Command::RemoveFence { .. }
        | Command::SetKind { .. }
        | Command::Rebind { .. }
        | Command::BecameLeader { .. }
        | Command::Configure(_)
        | Command::Restore { .. }
        | Command::PublishKey { .. }
        | Command::WithdrawKey { .. }
        | Command::RestoreBegin(_)
        | Command::RestorePiece(_)
        | Command::RestoreCommit { .. }
        | Command::PutCredential(_)
        | Command::RevokeCredential { .. }
        | Command::PutPolicy(_)
        | Command::RemovePolicy { .. }
        | Command::SetEnforced { .. }
        | Command::Upgrade { .. } => SecretPart::Nothing,
    }
}

/// Whether a command names a session or an acquire that need not exist yet: by a nonce, or by opening it.
pub(crate) fn names_something_new(command: &mut Command) -> bool {
    matches!(secret_part(command), SecretPart::Open(_) | SecretPart::Nonce(_))
}

/// Gives an open that carries a nonce the secret that follows from it.
pub(crate) fn derive(command: &mut Command) {
    if let SecretPart::Open(open) = secret_part(command)
        && let Some(nonce) = open.nonce
        && nonce.form() == SecretForm::Plain
    {
        open.secret = Secret::new(hash(domain::SECRET_OF_NONCE, nonce.as_bytes()));
    }
}

/// Hashes what is secret in a command, under format version 2 or later. `machine` is asked what it keeps in plain form;
/// without one, nothing is left in that form.
pub(crate) fn conceal(command: &mut Command, machine: Option<&Machine>) -> Option<OwnSecret> {
    let is_kept = |nonce: Nonce| machine.is_some_and(|machine| machine.knows_nonce(nonce));
    match secret_part(command) {
        SecretPart::Session(id) => {
            let form = machine.and_then(|machine| machine.secret_form(id.number));
            if form == Some(SecretForm::Plain) { None } else { OwnSecret::conceal(&mut id.secret) }
        }
        // The session of such an open is there already, and answers with the secret that it has.
        SecretPart::Open(open) if open.nonce.is_some_and(is_kept) => None,
        SecretPart::Open(open) => {
            open.nonce = open.nonce.map(stored_nonce);
            OwnSecret::conceal(&mut open.secret)
        }
        SecretPart::Nonce(nonce) => {
            if !is_kept(*nonce) {
                *nonce = stored_nonce(*nonce);
            }
            None
        }
        SecretPart::Nothing => None,
    }
}
