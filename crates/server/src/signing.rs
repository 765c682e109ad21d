//! Sequencers: this node's key, and what it signs with it.
//!
//! A node draws its Ed25519 key when it is first asked for a sequencer, or anybody for the keys, and keeps it in its data
//! directory, in a file that only its own user may read. The private half goes nowhere else: the log, snapshots and backups hold
//! public halves, each under a name that contains a piece of itself, so a key is never mistaken for another. Because the
//! public halves are in the log, every node serves all of them, and what a lost node has signed can be checked for as
//! long as its key is not withdrawn. This file never decides whether a lease lives; it states what the machine says.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_core::{Command, Grant, Identity, Machine, Mode, Scope, SessionId, Token};
use tenure_fence::sequencer::{ClaimedMode, Claims, Keys, Signing};
use tenure_replica::{Disk, Entropy, Execution, NodeId};
use tenure_wire::{ApiError, Code, words};
use tokio::sync::Mutex;

use crate::access::Access;
use crate::calls::failed;
use crate::context::CallContext;
use crate::front::Api;
use crate::node::Node;
use crate::secrets;

/// The file of the key, and where a new one is made ready.
const FILE: &str = "sequencer.key";
const DRAFT: &str = "sequencer.key.tmp";
const SEED_BYTES: usize = 32;
/// How long whoever asks for the keys waits for those that are not published yet.
const KEYS_WITHIN: Duration = Duration::from_secs(1);

/// Keeps this node's key.
pub(crate) struct Signer {
    node: NodeId,
    disk: Arc<dyn Disk>,
    entropy: Entropy,
    execution: Execution,
    /// Read from the file, or drawn, when it is first needed.
    key: Mutex<Option<Arc<Signing>>>,
}

impl Signer {
    pub fn new(node: NodeId, disk: Arc<dyn Disk>, entropy: Entropy, execution: Execution) -> Signer {
        Signer { node, disk, entropy, execution, key: Mutex::new(None) }
    }

    /// This node's key; drawn if there is none.
    async fn key(&self) -> Result<Arc<Signing>, ApiError> {
        let mut key = self.key.lock().await;
        if let Some(key) = &*key {
            return Ok(key.clone());
        }
        let (disk, entropy) = (self.disk.clone(), self.entropy.clone());
        let read = move || match read(&*disk) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => draw(&*disk, &entropy),
            read => read,
        };
        let seed = self.execution.blocking(read).await.map_err(|error| no_key(&error))?;
        Ok(key.insert(Arc::new(self.named(&seed))).clone())
    }

    /// Draws a new key in the place of the old one.
    async fn replace(&self) -> Result<Arc<Signing>, ApiError> {
        let mut key = self.key.lock().await;
        let (disk, entropy) = (self.disk.clone(), self.entropy.clone());
        let seed = self.execution.blocking(move || draw(&*disk, &entropy)).await;
        Ok(key.insert(Arc::new(self.named(&seed.map_err(|error| no_key(&error))?))).clone())
    }

    /// The key under the name by which others know it: the node, and enough of the public half to tell it from any other.
    fn named(&self, seed: &[u8; SEED_BYTES]) -> Signing {
        let public = Signing::from_seed("", seed).public();
        Signing::from_seed(format!("node-{}-{}", self.node, words::hex(&public[..8])), seed)
    }
}

fn no_key(error: &io::Error) -> ApiError {
    tracing::error!(%error, "the key for sequencers cannot be read or written");
    ApiError::new(Code::Internal, "this node has no key to sign with")
        .hint("its log says why; another node may sign instead")
}

fn read(disk: &dyn Disk) -> io::Result<[u8; SEED_BYTES]> {
    let file = disk.open(FILE)?;
    let mut seed = [0; SEED_BYTES];
    if file.len()? != SEED_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is not a key of this program"));
    }
    file.read_at(&mut seed, 0)?;
    Ok(seed)
}

/// Draws a key and makes it durable before anybody sees it.
fn draw(disk: &dyn Disk, entropy: &Entropy) -> io::Result<[u8; SEED_BYTES]> {
    let mut seed = [0; SEED_BYTES];
    seed[..16].copy_from_slice(&entropy.draw().to_be_bytes());
    seed[16..].copy_from_slice(&entropy.draw().to_be_bytes());
    match disk.remove(DRAFT) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(DRAFT)?;
    file.write_at(&seed, 0)?;
    file.sync_data()?;
    disk.rename(DRAFT, FILE)?;
    disk.sync_dir("")?;
    Ok(seed)
}

/// What is known of a sequencer.
pub(crate) struct Checked {
    pub verdict: Verdict,
    pub presented: Option<Token>,
    pub seen: Option<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its token is the newest of its scope.
    Valid,
    /// A newer one was granted.
    Stale,
    /// Not signed by this cluster, or about what it has never granted.
    Unknown,
}

impl Api {
    /// States a grant that the session holds, signed.
    pub async fn sequencer(
        &self,
        context: &CallContext,
        session: &SessionId,
        scope: &Scope,
        token: Option<Token>,
    ) -> Result<String, ApiError> {
        let found = self.look(context, false, |machine| {
            let session = &secrets::stored_id(*session, machine);
            if !machine.knows_as(&context.identity, session) {
                return Err(tenure_core::Refusal::UnknownSession);
            }
            let asked_for =
                |grant: &Grant| grant.slot == scope.slot && token.is_none_or(|token| grant.token == token);
            Ok((machine.lease_of(session, &scope.resource).filter(asked_for), cluster(machine)))
        });
        let (grant, cluster) = found.await??;
        let grant = grant.ok_or_else(|| {
            ApiError::new(Code::NotHeld, format!("the session does not hold {scope}"))
                .hint("a sequencer states a live grant; acquire the resource first")
        })?;
        let claims = Claims {
            cluster,
            scope: scope.clone(),
            token: grant.token,
            mode: match grant.mode {
                Mode::Exclusive => ClaimedMode::Exclusive,
                Mode::Shared => ClaimedMode::Shared,
                Mode::Slots(_) => ClaimedMode::Slot,
            },
            generation: grant.generation,
        };
        let key = self.node.signer().key().await?;
        self.node.publish(&key).await?;
        Ok(key.sign(&claims))
    }

    /// Whether a sequencer's token is still the newest of its scope.
    pub async fn check_sequencer(&self, context: &CallContext, sequencer: &str) -> Result<Checked, ApiError> {
        self.look(context, false, |machine| {
            let unknown = Checked { verdict: Verdict::Unknown, presented: None, seen: None };
            let Ok(claims) = keys(machine).verify(sequencer) else { return unknown };
            if !Access::new(machine, &context.identity).reads_resource(&claims.scope.resource) {
                return unknown;
            }
            let seen = machine.newest_token(&claims.scope);
            Checked { verdict: judge(claims.token, seen), presented: Some(claims.token), seen }
        })
        .await
    }

    /// The public keys of all nodes, as a JWKS. It may be stale: whoever misses a key asks again. Members without a key
    /// are made to draw one first, so that a fence can fetch the keys before anything is signed with them.
    pub async fn jwks(&self) -> String {
        self.node.gather_keys().await;
        self.node.glance(|machine| keys(machine).to_jwks())
    }

    /// Gives this node a new key. What the last one signed can still be checked; what was signed before that cannot.
    pub async fn rotate_key(&self, context: &CallContext) -> Result<String, ApiError> {
        let signer = self.node.signer();
        let last = signer.key().await?;
        self.node.publish(&last).await?;
        let new = signer.replace().await?;
        self.node.publish(&new).await?;
        let older: Vec<Arc<str>> = self.node.glance(|machine| {
            let ours = machine.signing_keys().filter(|(_, node, _)| *node == signer.node);
            ours.map(|(kid, ..)| kid.clone())
                .filter(|kid| **kid != *last.kid() && **kid != *new.kid())
                .collect()
        });
        for kid in older {
            self.withdraw_key(context, kid).await?;
        }
        Ok(new.kid().to_owned())
    }

    /// Takes a public key out of the set: nothing that it signed can be checked any more. If its node still signs with it,
    /// that node draws another one first, or it would publish this one again.
    pub async fn withdraw_key(&self, context: &CallContext, kid: Arc<str>) -> Result<(), ApiError> {
        let of =
            |machine: &Machine| machine.signing_keys().find(|(known, ..)| **known == kid).map(|key| key.1);
        match self.node.glance(of) {
            Some(node) if node == self.node.signer().node => self.node.show_key(&kid).await?,
            // It may be lost for good, which is a reason to withdraw its key.
            Some(node) => self.node.ask_for_key(node, &kid).await,
            None => {}
        }
        self.submit_without_result(context, Command::WithdrawKey { kid }).await
    }
}

impl Node {
    /// Has every member that has no key in the set publish one.
    async fn gather_keys(&self) {
        let published = |machine: &Machine| -> BTreeSet<NodeId> {
            machine.signing_keys().map(|(_, node, _)| node).collect()
        };
        let published = self.glance(published);
        let members = self.replica().status().peers.into_iter().map(|peer| peer.node);
        let others =
            join_all(members.filter(|node| !published.contains(node)).map(|node| self.ask_for_key(node, "")));
        let own = async {
            if !published.contains(&self.signer().node)
                && let Err(error) = self.show_key("").await
            {
                tracing::debug!(%error, "this node has not published its key for sequencers");
            }
        };
        // For whoever asks for keys, an incomplete answer now is worth more than a complete one at some time.
        let _ = tokio::time::timeout(KEYS_WITHIN, join(own, others)).await;
    }

    /// Publishes the key that this node signs with; if it is the one named, another one.
    pub(crate) async fn show_key(&self, instead_of: &str) -> Result<(), ApiError> {
        let mut key = self.signer().key().await?;
        if key.kid() == instead_of {
            key = self.signer().replace().await?;
        }
        self.publish(&key).await
    }

    /// Sees to it that everybody can check what this key signs.
    async fn publish(&self, key: &Signing) -> Result<(), ApiError> {
        let public = key.public();
        let known = |machine: &Machine| {
            machine.signing_keys().any(|(kid, _, known)| **kid == *key.kid() && *known == public)
        };
        if self.glance(known) {
            return Ok(());
        }
        let node = self.signer().node;
        let publish = Command::PublishKey { node, kid: key.kid().into(), key: public };
        // The node's own doing, whoever asked for a signature.
        self.submit(&Identity::Node, publish).await.map_err(failed)??;
        Ok(())
    }
}

/// The cluster's name for itself, as `/v1/cluster` shows it.
fn cluster(machine: &Machine) -> String {
    words::hex(&machine.settings().cluster)
}

fn keys(machine: &Machine) -> Keys {
    let mut keys = Keys::new(cluster(machine));
    for (kid, _, key) in machine.signing_keys() {
        if let Err(error) = keys.add(&**kid, key) {
            tracing::warn!(%kid, %error, "a published key cannot be used");
        }
    }
    keys
}

/// What a token that was signed here counts for, when this is the newest of its scope.
fn judge(presented: Token, newest: Option<Token>) -> Verdict {
    match newest {
        Some(newest) if presented == newest => Verdict::Valid,
        Some(newest) if presented < newest => Verdict::Stale,
        // Newer than anything granted, as after a restore; or about a scope that was forgotten.
        _ => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_token_is_valid() {
        let token = |number: u64| Token::try_from(number).expect("a token");
        assert_eq!(judge(token(7), Some(token(7))), Verdict::Valid);
        assert_eq!(judge(token(7), Some(token(8))), Verdict::Stale);
        assert_eq!(judge(token(8), Some(token(7))), Verdict::Unknown, "nobody granted it");
        assert_eq!(judge(token(7), None), Verdict::Unknown);
    }
}
