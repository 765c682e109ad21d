//! Policies: who may do what where, and the index that finds the answer.
//!
//! A policy only allows; what no policy allows is denied. This file decides, from an identity, a verb and a name,
//! which policies cover it. It knows no session, no credential and no time: those are the machine's
//! (`machine/authority.rs`).
//!
//! A decision must cost about as much with a thousand policies as with one. So policies stand under whom they are
//! for, and there under the prefixes that they are about; both are found by halving.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::identity::{Identity, Verb};
use crate::names::{IdentityName, InvalidName, PolicyName};

/// What a policy allows: to those in `who`, on what lies under `on`, what `may` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whom it is for.
    pub who: Vec<Who>,
    /// What it is about.
    pub on: Vec<Prefix>,
    /// What they may do there.
    pub may: Verbs,
    /// The holders that they may call themselves.
    pub holder: HolderRule,
    /// How much of it.
    pub limits: Quotas,
}

/// Whom a policy is for: one identity (`cred/pay-worker`), all that begin alike (`jwt/kubernetes/*`), everybody who has
/// proved who they are (`*`), or everybody (`anyone`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who(Arc<str>);

const ANYONE: &str = "anyone";

impl Who {
    /// The text of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this identity is among them.
    pub fn includes(&self, identity: &Identity) -> bool {
        match (identity.name(), self.0.strip_suffix('*')) {
            _ if &*self.0 == ANYONE => true,
            (Some(name), Some(start)) => name.as_str().starts_with(start),
            (Some(name), None) => name.as_str() == &*self.0,
            (None, _) => false,
        }
    }
}

impl FromStr for Who {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let pattern = text.strip_suffix('*');
        let whole = pattern.is_none() && text != ANYONE;
        if whole {
            text.parse::<IdentityName>()?;
        } else if text.len() > 256 || text.contains(char::is_control) {
            return Err(InvalidName::new("identity", "it has more than 256 bytes, or a control character"));
        }
        let named = |pattern: &str| {
            let source = pattern.split_once('/').map(|(source, _)| source);
            pattern.is_empty() || source.is_some_and(|source| IdentityName::SOURCES.contains(&source))
        };
        if pattern.is_some_and(|pattern| pattern.contains('*') || !named(pattern)) {
            let why = "before a `*` at the end stands nothing, or a source and a slash, such as `cred/`";
            return Err(InvalidName::new("identity", why));
        }
        Ok(Who(text.into()))
    }
}

/// What a policy is about: everything (`*`), or a name and all that lies under it. `pay` and `pay/` are the same: they
/// cover `pay` and `pay/x`, not `payroll`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

const EVERYTHING: &str = "*";

impl Prefix {
    /// The text of it, without a slash at the end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Everything.
    pub fn everything() -> Prefix {
        Prefix(EVERYTHING.into())
    }

    /// Whether this name, or all that lies under this prefix, is covered.
    pub fn covers(&self, name: &[u8]) -> bool {
        &*self.0 == EVERYTHING
            || name.strip_prefix(self.0.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// What names must begin with, when a slash is put behind them.
    fn start(&self) -> String {
        if &*self.0 == EVERYTHING { String::new() } else { alloc::format!("{}/", self.0) }
    }
}

impl FromStr for Prefix {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = |why: &str| Err(InvalidName::new("prefix", why));
        if text.is_empty() {
            return invalid("it is empty; everything is `*`");
        }
        if text.len() > 1024 || text.contains(char::is_control) {
            return invalid("it has more than 1024 bytes, or a control character");
        }
        if text != EVERYTHING && text.contains('*') {
            return invalid("a `*` stands alone, for everything; a prefix needs none");
        }
        Ok(Prefix(text.strip_suffix('/').unwrap_or(text).into()))
    }
}

/// Implements how a checked text is shown.
macro_rules! shown {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}

shown!(Who, Prefix);

/// A set of verbs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Verbs(u8);

impl Verbs {
    /// All that a policy can allow.
    pub const ALL: Verbs = Verbs(0b1111_1110);

    /// Whether this one is in it. What needs no right is in every set.
    pub const fn contains(self, verb: Verb) -> bool {
        matches!(verb, Verb::Public) || self.0 & 1 << verb as u8 != 0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and those.
    #[must_use]
    pub const fn union(self, others: Verbs) -> Verbs {
        Verbs(self.0 | others.0)
    }

    /// The verbs in it, in the order of [`Verb::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| *verb != Verb::Public && self.contains(*verb))
    }

    /// As a number: one bit for each verb, by its place in [`Verb::ALL`].
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of this number, if there is one.
    pub const fn from_bits(bits: u8) -> Option<Verbs> {
        if bits & !Verbs::ALL.0 == 0 { Some(Verbs(bits)) } else { None }
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Verbs {
        Verbs(verbs.into_iter().fold(0, |bits, verb| bits | 1 << verb as u8) & Verbs::ALL.0)
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The holders that those of a policy may call themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HolderRule {
    /// Any.
    #[default]
    Any,
    /// Their own name, or what lies under it: see [`Identity::owns_holder`].
    Own,
}

/// How much a policy allows. Sessions, leases and waiters are counted for each identity; registers and their bytes for
/// everybody together, because a register belongs to nobody. `None` is as much as the cluster takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quotas {
    /// Sessions of one identity.
    pub sessions: Option<u32>,
    /// Leases of one identity under the policy's prefixes, with those that it waits for.
    pub leases: Option<u32>,
    /// Places in queues of one identity under the policy's prefixes.
    pub waiters: Option<u32>,
    /// Registers under the policy's prefixes.
    pub registers: Option<u32>,
    /// Bytes of the values of these registers.
    pub bytes: Option<u64>,
    /// The longest TTL.
    pub ttl_max: Option<Duration>,
    /// The highest priority. Unlike the others it is zero unless it is given.
    pub priority_max: i32,
}

impl Quotas {
    /// Whether what is allowed has to be counted under the policy's prefixes.
    pub(crate) fn counts(&self) -> bool {
        let Quotas { sessions: _, leases, waiters, registers, bytes, ttl_max: _, priority_max: _ } = self;
        leases.is_some() || waiters.is_some() || registers.is_some() || bytes.is_some()
    }

    /// Whether these allow nothing that those do not.
    pub fn is_within(&self, own: &Quotas) -> bool {
        fn within<T: Ord>(given: &Option<T>, own: &Option<T>) -> bool {
            own.as_ref().is_none_or(|own| given.as_ref().is_some_and(|given| given <= own))
        }
        let Quotas { sessions, leases, waiters, registers, bytes, ttl_max, priority_max } = self;
        within(sessions, &own.sessions)
            && within(leases, &own.leases)
            && within(waiters, &own.waiters)
            && within(registers, &own.registers)
            && within(bytes, &own.bytes)
            && within(ttl_max, &own.ttl_max)
            && *priority_max <= own.priority_max
    }
}

/// What the policies say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Allowed {
        /// By this policy; `None` where none is needed: nothing is enforced, or an operator asks.
        by: Option<PolicyName>,
    },
    /// No.
    Denied {
        /// Of the caller's own policies the one that comes nearest.
        nearest: Option<PolicyName>,
    },
}

impl Verdict {
    /// Whether it is a yes.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Verdict::Allowed { .. })
    }
}

/// All policies, indexed. Derived from the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicySet {
    rules: Vec<(PolicyName, Arc<Policy>)>,
    /// Policies for one identity, and for anyone.
    exact: BTreeMap<Arc<str>, Rights>,
    /// Policies for those that begin alike.
    alike: PrefixTree<Rights>,
}

/// What those under one `who` may do, and where.
#[derive(Clone, Debug, Default)]
struct Rights {
    anywhere: Verbs,
    /// The numbers of the policies, by what they are about.
    on: PrefixTree<Vec<u32>>,
    all: Vec<u32>,
}

impl PolicySet {
    pub fn new(policies: &BTreeMap<PolicyName, Arc<Policy>>) -> PolicySet {
        let rules: Vec<_> = policies.iter().map(|(name, policy)| (name.clone(), policy.clone())).collect();
        let mut numbers: BTreeMap<&Who, Vec<u32>> = BTreeMap::new();
        for (number, (_, policy)) in rules.iter().enumerate() {
            for who in &policy.who {
                let listed = numbers.entry(who).or_default();
                if listed.last() != Some(&(number as u32)) {
                    listed.push(number as u32);
                }
            }
        }
        let (mut exact, mut alike) = (BTreeMap::new(), Vec::new());
        for (who, numbers) in numbers {
            let rights = Rights::new(&rules, numbers);
            match who.0.strip_suffix('*') {
                Some(start) => alike.push((String::from(start), rights)),
                None => drop(exact.insert(who.0.clone(), rights)),
            }
        }
        PolicySet { exact, alike: PrefixTree::new(alike), rules }
    }

    pub fn rule(&self, number: u32) -> (&PolicyName, &Policy) {
        let (name, policy) = &self.rules[number as usize];
        (name, policy)
    }

    pub fn rules(&self) -> impl Iterator<Item = (u32, &PolicyName, &Policy)> {
        self.rules.iter().enumerate().map(|(number, (name, policy))| (number as u32, name, &**policy))
    }

    fn rights_of<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = &'a Rights> {
        let name = identity.name().map(IdentityName::as_str);
        let own = name.and_then(|name| self.exact.get(name));
        let alike = name.map(|name| self.alike.starts_of(name.as_bytes(), b""));
        own.into_iter().chain(alike.into_iter().flatten()).chain(self.exact.get(ANYONE))
    }

    /// The policies for this identity that cover this name; of those for one `who` the longest prefixes first.
    pub fn covering<'a>(&'a self, identity: &'a Identity, on: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        // Whoever asks about everything asks for policies on everything.
        let on = if on == EVERYTHING.as_bytes() { &b""[..] } else { on };
        let tail = if on.is_empty() { &b""[..] } else { b"/" };
        self.rights_of(identity).flat_map(move |rights| rights.on.starts_of(on, tail).flatten().copied())
    }

    /// The policies for this identity that allow this somewhere.
    pub fn anywhere<'a>(
        &'a self,
        identity: &'a Identity,
        verb: Verb,
    ) -> impl Iterator<Item = (&'a PolicyName, &'a Policy)> {
        let rights = self.rights_of(identity).filter(move |rights| rights.anywhere.contains(verb));
        let rules = rights.flat_map(|rights| &rights.all).map(|number| self.rule(*number));
        rules.filter(move |(_, policy)| policy.may.contains(verb))
    }

    /// Whether a policy allows this, and which.
    pub fn judge(&self, identity: &Identity, verb: Verb, on: &[u8]) -> Verdict {
        if matches!(identity, Identity::Operator | Identity::Node) || verb == Verb::Public {
            return Verdict::Allowed { by: None };
        }
        let mut rules = self.covering(identity, on).map(|number| self.rule(number));
        match rules.find(|(_, policy)| policy.may.contains(verb)) {
            Some((by, _)) => Verdict::Allowed { by: Some(by.clone()) },
            None => Verdict::Denied { nearest: self.nearest(identity, verb, on) },
        }
    }

    /// The policy for this identity that nearly allows this: it covers the name, or it has the verb.
    pub fn nearest(&self, identity: &Identity, verb: Verb, on: &[u8]) -> Option<PolicyName> {
        let covering = self.covering(identity, on).next().map(|number| self.rule(number).0);
        covering.or_else(|| self.anywhere(identity, verb).next().map(|(name, _)| name)).cloned()
    }
}

impl Rights {
    fn new(rules: &[(PolicyName, Arc<Policy>)], numbers: Vec<u32>) -> Rights {
        let mut on: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut anywhere = Verbs::default();
        for number in &numbers {
            let policy = &rules[*number as usize].1;
            anywhere = anywhere.union(policy.may);
            for prefix in &policy.on {
                let listed = on.entry(prefix.start()).or_default();
                if listed.last() != Some(number) {
                    listed.push(*number);
                }
            }
        }
        Rights { anywhere, on: PrefixTree::new(on.into_iter().collect()), all: numbers }
    }
}

/// Texts that are beginnings of others, in order, each with the longest other one that it begins with.
#[derive(Clone, Debug)]
struct PrefixTree<T> {
    nodes: Vec<Node<T>>,
}

#[derive(Clone, Debug)]
struct Node<T> {
    start: Arc<str>,
    parent: Option<u32>,
    value: T,
}

impl<T> Default for PrefixTree<T> {
    fn default() -> Self {
        PrefixTree { nodes: Vec::new() }
    }
}

impl<T> PrefixTree<T> {
    /// The tree of these texts, each given once.
    fn new(mut starts: Vec<(String, T)>) -> PrefixTree<T> {
        starts.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut nodes: Vec<Node<T>> = Vec::with_capacity(starts.len());
        for (start, value) in starts {
            // All texts that this one begins with stand above the one just before it.
            let mut parent = nodes.len().checked_sub(1).map(|last| last as u32);
            while let Some(above) = parent
                && !start.starts_with(&*nodes[above as usize].start)
            {
                parent = nodes[above as usize].parent;
            }
            nodes.push(Node { start: start.into(), parent, value });
        }
        PrefixTree { nodes }
    }

    /// The values of all texts with which `text` followed by `tail` begins, the longest first.
    fn starts_of(&self, text: &[u8], tail: &[u8]) -> impl Iterator<Item = &T> {
        // The last text that is not greater begins with every text that is asked for: nothing else fits between.
        let after = self.nodes.partition_point(|node| order(node.start.as_bytes(), text, tail).is_le());
        let mut at = after.checked_sub(1).map(|last| last as u32);
        while let Some(above) = at
            && !begins(self.nodes[above as usize].start.as_bytes(), text, tail)
        {
            at = self.nodes[above as usize].parent;
        }
        core::iter::from_fn(move || {
            let node = &self.nodes[at? as usize];
            at = node.parent;
            Some(&node.value)
        })
    }
}

/// How `start` compares with `text` followed by `tail`.
fn order(start: &[u8], text: &[u8], tail: &[u8]) -> Ordering {
    let common = start.len().min(text.len());
    start[..common].cmp(&text[..common]).then_with(|| {
        start[common..].cmp(if common == text.len() {
            tail
        } else {
            // It ends within the text, so it is a beginning of it, and comes before.
            &text[common..]
        })
    })
}

/// Whether `text` followed by `tail` begins with `start`.
fn begins(start: &[u8], text: &[u8], tail: &[u8]) -> bool {
    let common = start.len().min(text.len());
    start[..common] == text[..common] && tail.starts_with(&start[common..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn policy(who: &[&str], on: &[&str], may: &[Verb]) -> Policy {
        Policy {
            who: who.iter().map(|text| text.parse().unwrap()).collect(),
            on: on.iter().map(|text| text.parse().unwrap()).collect(),
            may: may.iter().copied().collect(),
            ..Policy::default()
        }
    }

    fn set(policies: Vec<(&str, Policy)>) -> PolicySet {
        let policies = policies.into_iter().map(|(name, policy)| (name.parse().unwrap(), Arc::new(policy)));
        PolicySet::new(&policies.collect())
    }

    fn identity(name: &str) -> Identity {
        Identity::named(name.parse().unwrap())
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        let set = set(vec![("pay", policy(&["cred/a"], &["pay/"], &[Verb::Hold]))]);
        let verdict = |on: &str| set.judge(&identity("cred/a"), Verb::Hold, on.as_bytes()).is_allowed();
        assert!(verdict("pay") && verdict("pay/x") && verdict("pay/x/y"));
        for other in ["payroll", "pa", "pay-x", "pay.", "pay0", "p", "x/pay", "*", "PAY"] {
            assert!(!verdict(other), "{other}");
        }
    }

    #[test]
    fn everything_is_covered_only_by_everything() {
        let set = set(vec![
            ("all", policy(&["cred/root"], &["*"], &[Verb::Operate, Verb::Read])),
            ("pay", policy(&["cred/a"], &["pay", "/slashed"], &[Verb::Operate, Verb::Read])),
        ]);
        for on in ["*", "pay", "anything/at/all", "/slashed/x"] {
            assert!(set.judge(&identity("cred/root"), Verb::Read, on.as_bytes()).is_allowed(), "{on}");
        }
        assert!(!set.judge(&identity("cred/a"), Verb::Operate, b"*").is_allowed());
        assert!(set.judge(&identity("cred/a"), Verb::Read, b"/slashed/x").is_allowed());
        assert!(!set.judge(&identity("cred/a"), Verb::Read, b"slashed/x").is_allowed());
    }

    #[test]
    fn identities_that_begin_alike_share_what_is_given_to_all_of_them() {
        let set = set(vec![
            ("k8s", policy(&["jwt/k/*"], &["k"], &[Verb::Hold])),
            ("ns", policy(&["jwt/k/ns:*"], &["n"], &[Verb::Hold])),
            ("known", policy(&["*"], &["known"], &[Verb::Read])),
            ("open", policy(&["anyone"], &["open"], &[Verb::Read])),
        ]);
        let may = |who: &Identity, verb, on: &str| set.judge(who, verb, on.as_bytes()).is_allowed();
        let (ns, other) = (identity("jwt/k/ns:a"), identity("jwt/k2/ns:a"));
        assert!(may(&ns, Verb::Hold, "k/1") && may(&ns, Verb::Hold, "n/1") && may(&ns, Verb::Read, "known"));
        assert!(
            !may(&other, Verb::Hold, "k/1")
                && !may(&other, Verb::Hold, "n")
                && may(&other, Verb::Read, "known")
        );
        assert!(may(&Identity::Anyone, Verb::Read, "open") && !may(&Identity::Anyone, Verb::Read, "known"));
        assert!(may(&ns, Verb::Read, "open"), "what anyone may do, everybody may");
        assert!(may(&Identity::Operator, Verb::Grant, "*"));
    }

    #[test]
    fn a_denial_names_the_nearest_policy_of_the_caller() {
        let set = set(vec![
            ("mine", policy(&["cred/a"], &["pay"], &[Verb::Read])),
            ("others", policy(&["cred/b"], &["shop"], &[Verb::Hold])),
        ]);
        let nearest = |verb, on: &str| match set.judge(&identity("cred/a"), verb, on.as_bytes()) {
            Verdict::Denied { nearest } => nearest.map(|name| String::from(name.as_str())),
            Verdict::Allowed { .. } => panic!("allowed"),
        };
        assert_eq!(nearest(Verb::Hold, "pay/x").as_deref(), Some("mine"), "it covers the name");
        assert_eq!(nearest(Verb::Read, "shop").as_deref(), Some("mine"), "it has the verb");
        assert_eq!(nearest(Verb::Hold, "shop"), None, "what others may do is not told");
    }

    /// The index says what looking at every policy says.
    #[test]
    fn the_index_agrees_with_a_plain_search() {
        let texts = ["a", "a/b", "a/b/c", "ab", "b", "a-b", "a/b-c", "a0", "*"];
        let whos = ["cred/a", "cred/*", "cred/a*", "*", "anyone", "cert/a", "cred/ab"];
        let mut policies = Vec::new();
        for (number, who) in whos.iter().enumerate() {
            for (place, on) in texts.iter().enumerate() {
                if (number * 5 + place * 3) % 4 == 0 {
                    let verb = Verb::ALL[1 + (number + place) % 7];
                    let other = texts[(place * 7 + number) % texts.len()];
                    policies
                        .push((alloc::format!("p{number}-{place}"), policy(&[who], &[on, other], &[verb])));
                }
            }
        }
        let set = set(policies.iter().map(|(name, policy)| (name.as_str(), policy.clone())).collect());
        let callers = ["cred/a", "cred/ab", "cred/b", "cert/a", "cert/b"].map(identity);
        for caller in callers.iter().chain([&Identity::Anyone]) {
            for on in texts.iter().chain(&["a/b/c/d", "c", "a/bc", "a/"]) {
                for verb in Verb::ALL.into_iter().skip(1) {
                    let plain = policies.iter().any(|(_, policy)| {
                        policy.may.contains(verb)
                            && policy.who.iter().any(|who| who.includes(caller))
                            && policy.on.iter().any(|prefix| prefix.covers(on.as_bytes()))
                    });
                    let found = set.judge(caller, verb, on.as_bytes()).is_allowed();
                    assert_eq!(found, plain, "{caller} {verb} {on}");
                }
            }
        }
    }

    #[test]
    fn texts_are_checked() {
        for bad in ["", "cred", "cred/", "*cred", "cred/**", "c*", "Anyone", "operator"] {
            assert!(bad.parse::<Who>().is_err(), "{bad:?}");
        }
        for bad in ["", "a*", "a\n", "*/a"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad:?}");
        }
        assert_eq!("pay/".parse::<Prefix>(), "pay".parse());
        assert_eq!(Verbs::from_bits(1), None);
        assert_eq!(Verbs::from_bits(0b110).map(|verbs| verbs.iter().count()), Some(2));
    }
}
