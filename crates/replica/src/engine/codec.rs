//! The bytes of a membership, on disk and on the wire.
//!
//! `version u8 · configs u32 · (voters u32 · node u64 …) … · nodes u32 · (node u64 · identity u128 ·
//! address length u16 · address) …`, all numbers little-endian. In version 2, `has key u8 · hash of the key, 32 bytes`
//! follows each address. It is written only if a member has a key, and `membership.rs` enters keys only if every member
//! can read them: older programs read the other.

use super::types::Member;
use crate::NodeId;
use bytes::{Buf, BufMut, Bytes};
use openraft::Membership;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use tenure_tls::KeyHash;

const VERSION: u8 = 1;
/// With the keys of members.
const VERSION_KEYS: u8 = 2;
/// The format version of the cluster from which on the membership has keys.
pub(crate) const KEYS_SINCE: u16 = 2;

/// The bytes of a membership.
pub(crate) fn encode_membership(membership: &Membership<NodeId, Member>) -> Bytes {
    let mut output = Vec::new();
    let keys = membership.nodes().any(|(_, member)| member.key.is_some());
    output.put_u8(if keys { VERSION_KEYS } else { VERSION });
    let configs = membership.get_joint_config();
    output.put_u32_le(configs.len() as u32);
    for voters in configs {
        output.put_u32_le(voters.len() as u32);
        voters.iter().for_each(|voter| output.put_u64_le(*voter));
    }
    output.put_u32_le(membership.nodes().count() as u32);
    for (node, member) in membership.nodes() {
        output.put_u64_le(*node);
        output.put_u128_le(member.identity);
        let address = member.address.as_bytes();
        output.put_u16_le(u16::try_from(address.len()).expect("an address must be shorter than 64 KiB"));
        output.put_slice(address);
        if keys {
            output.put_u8(member.key.is_some().into());
            output.put_slice(&member.key.map_or([0; 32], |key| key.0));
        }
    }
    output.into()
}

/// The membership in `input`.
pub(crate) fn decode_membership(input: Bytes) -> io::Result<Membership<NodeId, Member>> {
    decode(input).map_err(|what| io::Error::new(io::ErrorKind::InvalidData, format!("a membership: {what}")))
}

fn decode(mut input: Bytes) -> Result<Membership<NodeId, Member>, String> {
    let short = |error: bytes::TryGetError| error.to_string();
    let version = input.try_get_u8().map_err(short)?;
    if !(VERSION..=VERSION_KEYS).contains(&version) {
        return Err(format!("version {version} is unknown; start the newer program that wrote it"));
    }
    let mut configs = Vec::new();
    for _ in 0..input.try_get_u32_le().map_err(short)? {
        let mut voters = BTreeSet::new();
        for _ in 0..input.try_get_u32_le().map_err(short)? {
            voters.insert(input.try_get_u64_le().map_err(short)?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..input.try_get_u32_le().map_err(short)? {
        let node = input.try_get_u64_le().map_err(short)?;
        let identity = input.try_get_u128_le().map_err(short)?;
        let length = usize::from(input.try_get_u16_le().map_err(short)?);
        if length > input.len() {
            return Err("an address is cut short".into());
        }
        let address = String::from_utf8(input.split_to(length).into()).map_err(|error| error.to_string())?;
        let mut key = None;
        if version == VERSION_KEYS {
            let some = input.try_get_u8().map_err(short)? != 0;
            let mut hash = [0; 32];
            input.try_copy_to_slice(&mut hash).map_err(short)?;
            key = some.then_some(KeyHash(hash));
        }
        nodes.insert(node, Member { address, identity, key });
    }
    if !input.is_empty() {
        return Err("there are bytes behind it".into());
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Membership<NodeId, Member> {
        let member = |node: u64| Member {
            address: format!("10.0.0.{node}:7401"),
            identity: u128::from(node) << 100,
            key: None,
        };
        let configs = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])];
        let nodes: BTreeMap<_, _> = (1..=5).map(|node| (node, member(node))).collect();
        Membership::new(configs, nodes).expect("a valid membership")
    }

    fn with_a_key() -> Membership<NodeId, Member> {
        let sample = sample();
        let mut nodes: BTreeMap<_, _> =
            sample.nodes().map(|(node, member)| (*node, member.clone())).collect();
        nodes.get_mut(&2).expect("it is a member").key = Some(KeyHash([7; 32]));
        Membership::new(sample.get_joint_config().clone(), nodes).expect("a valid membership")
    }

    #[test]
    fn older_programs_read_a_membership_without_keys() {
        assert_eq!(encode_membership(&sample())[0], VERSION);
        assert_eq!(encode_membership(&with_a_key())[0], VERSION_KEYS);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for membership in [sample(), with_a_key(), Membership::default()] {
            assert_eq!(decode_membership(encode_membership(&membership)).unwrap(), membership);
        }
    }

    #[test]
    fn a_cut_or_newer_one_is_refused() {
        let bytes = encode_membership(&with_a_key());
        for length in 0..bytes.len() {
            assert!(decode_membership(bytes.slice(..length)).is_err(), "{length} bytes");
        }
        let mut newer = bytes.to_vec();
        newer[0] = VERSION_KEYS + 1;
        let error = decode_membership(newer.into()).unwrap_err().to_string();
        assert!(error.contains("newer program"), "{error}");
    }
}
