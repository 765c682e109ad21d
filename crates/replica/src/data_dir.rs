//! The data directory: which node it belongs to, and that no other process uses it.
//!
//! Its identity is 128 random bits, drawn once and durable before this node sends anything to a peer. A node
//! that returns under its old number with another identity has lost what it promised, and peers that know the
//! old identity refuse it.

use crate::config::Entropy;
use crate::disk::Disk;
use crate::error::{REJOIN, StartError};
use crate::{NodeId, snapshot, wal};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

const LOCK: &str = "lock";
const IDENTITY: &str = "identity";
const DRAFT: &str = "identity.tmp";
/// Raised when older programs could no longer make sense of the directory.
const VERSION: u32 = 1;

/// Who this node is. Read by people too, so it is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub node: NodeId,
    /// Of this directory.
    pub identity: u128,
    /// Of the cluster it belongs to, once it belongs to one.
    pub cluster: Option<u128>,
}

/// An open data directory.
pub(crate) struct DataDir {
    disk: Arc<dyn Disk>,
    identity: Mutex<Identity>,
}

impl DataDir {
    /// Opens the directory, or founds it if it is empty. The lock is to be kept for as long as
    /// anything writes.
    pub fn open(
        disk: Arc<dyn Disk>,
        node: NodeId,
        entropy: &Entropy,
    ) -> Result<(Self, Box<dyn Send + Sync>), StartError> {
        let failed = |error| StartError::Io("cannot open the data directory".into(), error);
        let lock = disk.lock(LOCK).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => StartError::Locked,
            _ => failed(error),
        })?;
        let names = disk.list("").map_err(failed)?;
        let identity = if names.iter().any(|name| name == IDENTITY) {
            let identity = Identity::parse(&read(&*disk).map_err(failed)?)?;
            if identity.node != node {
                return Err(StartError::Configuration(format!(
                    "the data directory belongs to node {}, and this was started as node {node}: start it with --node \
                     {}, or give it another --data-dir",
                    identity.node, identity.node
                )));
            }
            identity
        } else {
            // It is the first file of all: whatever else there is was written under an identity.
            let mut others = usize::from(names.iter().any(|name| name == wal::SYNCED));
            for directory in [wal::DIRECTORY, snapshot::DIRECTORY] {
                disk.create_dir(directory).map_err(failed)?;
                others += disk.list(directory).map_err(failed)?.len();
            }
            if others > 0 {
                return Err(StartError::Data(format!(
                    "the data directory holds data but no identity: the file `identity` is lost. {REJOIN}"
                )));
            }
            let identity = Identity { node, identity: entropy.draw(), cluster: None };
            write(&*disk, identity).map_err(failed)?;
            identity
        };
        Ok((Self { disk, identity: Mutex::new(identity) }, lock))
    }

    /// Who this node is.
    pub fn identity(&self) -> Identity {
        *self.identity.lock()
    }

    /// Notes, durably and for ever, which cluster this node belongs to.
    pub fn join(&self, cluster: u128) -> io::Result<()> {
        let mut identity = self.identity.lock();
        assert!(identity.cluster.is_none_or(|known| known == cluster), "a node never changes its cluster");
        if identity.cluster.is_none() {
            let joined = Identity { cluster: Some(cluster), ..*identity };
            write(&*self.disk, joined)?;
            *identity = joined;
        }
        Ok(())
    }

    /// What the log's frames are salted with.
    pub fn salt(&self) -> u64 {
        self.identity().identity as u64
    }
}

fn read(disk: &dyn Disk) -> io::Result<String> {
    let file = disk.open(IDENTITY)?;
    let mut content = vec![0; file.len()? as usize];
    file.read_at(&mut content, 0)?;
    String::from_utf8(content).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn write(disk: &dyn Disk, identity: Identity) -> io::Result<()> {
    // An attempt that the disk failed may have left its draft: it must not stand in the way of this one.
    match disk.remove(DRAFT) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(DRAFT)?;
    file.write_at(identity.render().as_bytes(), 0)?;
    file.sync_data()?;
    disk.rename(DRAFT, IDENTITY)?;
    disk.sync_dir("")
}

impl Identity {
    fn render(&self) -> String {
        let cluster = self.cluster.map_or_else(|| "none".into(), |cluster| format!("{cluster:032x}"));
        let body = format!(
            "tenure-data {VERSION}\nnode {}\nidentity {:032x}\ncluster {cluster}\n",
            self.node, self.identity
        );
        format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    fn parse(text: &str) -> Result<Self, StartError> {
        let first = text.lines().next().unwrap_or_default();
        let version = first.strip_prefix("tenure-data ").and_then(|version| version.parse::<u32>().ok());
        if let Some(newer) = version.filter(|version| *version > VERSION) {
            return Err(StartError::Data(format!(
                "the data directory has format version {newer}, this program knows versions up to {VERSION}: start the \
                 newer program that wrote it"
            )));
        }
        Self::parse_body(text).ok_or_else(|| {
            StartError::Data(format!("the file `identity` of the data directory is damaged. {REJOIN}"))
        })
    }

    fn parse_body(text: &str) -> Option<Self> {
        let (body, checksum) = text.trim_end().rsplit_once("crc32c ")?;
        if u32::from_str_radix(checksum, 16).ok()? != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines().skip(1);
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let node = field("node")?.parse().ok()?;
        let identity = u128::from_str_radix(field("identity")?, 16).ok()?;
        let cluster = match field("cluster")? {
            "none" => None,
            digits => Some(u128::from_str_radix(digits, 16).ok()?),
        };
        Some(Self { node, identity, cluster })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn open(disk: &SimDisk, node: NodeId) -> Result<(DataDir, Box<dyn Send + Sync>), StartError> {
        DataDir::open(Arc::new(disk.clone()), node, &Entropy::from_source(|| 42))
    }

    #[test]
    fn an_identity_is_drawn_once_and_kept() {
        let disk = SimDisk::new();
        let (first, lock) = open(&disk, 7).unwrap();
        assert!(matches!(open(&disk, 7), Err(StartError::Locked)));
        first.join(99).unwrap();
        drop(lock);
        disk.crash(1);
        let entropy = Entropy::from_source(|| panic!("a known directory draws nothing"));
        let (again, _lock) = DataDir::open(Arc::new(disk), 7, &entropy).unwrap();
        assert_eq!(again.identity(), Identity { node: 7, identity: 42, cluster: Some(99) });
    }

    #[test]
    fn a_failed_attempt_to_join_does_not_stand_in_the_way_of_the_next() {
        let disk = SimDisk::new();
        let (directory, _lock) = open(&disk, 7).unwrap();
        disk.fail_syncs_after(Some(0));
        directory.join(99).unwrap_err();
        assert_eq!(directory.identity().cluster, None, "what is not durable does not count");
        disk.fail_syncs_after(None);
        directory.join(99).unwrap();
        assert_eq!(directory.identity().cluster, Some(99));
    }

    #[test]
    fn another_node_is_refused() {
        let disk = SimDisk::new();
        drop(open(&disk, 7).unwrap());
        let error = open(&disk, 8).err().unwrap().to_string();
        assert!(error.contains("belongs to node 7"), "{error}");
    }

    #[test]
    fn a_newer_version_is_refused_and_says_so() {
        let error = Identity::parse("tenure-data 2\nwhatever\n").unwrap_err().to_string();
        assert!(error.contains("start the newer program"), "{error}");
    }

    #[test]
    fn damage_is_refused() {
        let disk = SimDisk::new();
        drop(open(&disk, 7).unwrap());
        disk.damage("identity", 20, 1);
        let error = open(&disk, 7).err().unwrap().to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn a_log_without_an_identity_is_refused() {
        let disk = SimDisk::new();
        disk.create("log/0000000000000001.wal").unwrap();
        let error = open(&disk, 7).err().unwrap().to_string();
        assert!(error.contains("no identity"), "{error}");
    }
}
