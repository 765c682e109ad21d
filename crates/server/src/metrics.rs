//! The page at `/metrics`: what this node counts, as Prometheus reads it.
//!
//! Every family has a help text and its unit in its name. Numbers for people and alerts; nothing decides by
//! them. [`Traffic`] counts what the front ends see; the rest is asked of the node when the page is asked for.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{ArmedView, EndReason, FenceView, Identity, Margins, WallTime};
use tenure_replica::Role;

use crate::access::Access;
use crate::front::Callers;
use crate::node::Node;
use crate::tally::Durations;

/// Which front end a request came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Surface {
    Http,
    Grpc,
}

impl Surface {
    fn as_str(self) -> &'static str {
        match self {
            Surface::Http => "http",
            Surface::Grpc => "grpc",
        }
    }
}

/// What the front ends of a node see.
#[derive(Debug, Default)]
pub struct Traffic {
    connections_accepted: AtomicU64,
    connections_closed: AtomicU64,
    connections_refused: AtomicU64,
    connections_made_room: AtomicU64,
    connections_idle: AtomicU64,
    handshakes_failed: AtomicU64,
    handshakes_refused: AtomicU64,
    reload_failures: AtomicU64,
    /// Seconds since 1970; 0 without TLS.
    certificate_ends: AtomicU64,
    insecure: AtomicBool,
    watchers: AtomicU64,
    watchers_ended: AtomicU64,
    waits: AtomicU64,
    waits_ended: AtomicU64,
    calls: Mutex<BTreeMap<(Surface, &'static str), Calls>>,
}

#[derive(Debug)]
struct Calls {
    /// By the stable code of their answers.
    answered: BTreeMap<&'static str, u64>,
    took: Durations,
}

/// Counts something that is under way for as long as this exists.
pub(crate) struct UnderWay {
    traffic: std::sync::Arc<Traffic>,
    ended: fn(&Traffic) -> &AtomicU64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        (self.ended)(&self.traffic).fetch_add(1, Relaxed);
    }
}

impl Traffic {
    pub(crate) fn connection_opened(&self) {
        self.connections_accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections_closed.fetch_add(1, Relaxed);
    }

    pub(crate) fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }

    /// An idle connection was closed for a new one.
    pub(crate) fn connection_made_room(&self) {
        self.connections_made_room.fetch_add(1, Relaxed);
    }

    /// A connection was closed because nothing happened on it for too long.
    pub(crate) fn connection_idle(&self) {
        self.connections_idle.fetch_add(1, Relaxed);
    }

    /// A client did not complete its handshake, or showed a certificate that is not believed.
    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Relaxed);
    }

    /// A connection was closed because too many handshakes were under way.
    pub(crate) fn handshake_refused(&self) {
        self.handshakes_refused.fetch_add(1, Relaxed);
    }

    /// A certificate for clients could not be replaced.
    pub(crate) fn reload_failed(&self) {
        self.reload_failures.fetch_add(1, Relaxed);
    }

    /// The certificate that clients are shown ends at this time.
    pub(crate) fn certificate_ends(&self, at: WallTime) {
        self.certificate_ends.store(at.as_unix_millis() / 1_000, Relaxed);
    }

    /// Other machines reach a port of this node without TLS.
    pub(crate) fn set_insecure(&self, insecure: bool) {
        self.insecure.store(insecure, Relaxed);
    }

    /// Whether they do.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure.load(Relaxed)
    }

    /// Somebody watches, as long as what is returned exists.
    pub(crate) fn watching(self: &std::sync::Arc<Self>) -> UnderWay {
        self.watchers.fetch_add(1, Relaxed);
        UnderWay { traffic: self.clone(), ended: |traffic| &traffic.watchers_ended }
    }

    /// Somebody waits in the queue, as long as what is returned exists.
    pub(crate) fn waiting(self: &std::sync::Arc<Self>) -> UnderWay {
        self.waits.fetch_add(1, Relaxed);
        UnderWay { traffic: self.clone(), ended: |traffic| &traffic.waits_ended }
    }

    /// A request was answered: with which code, and after how long.
    pub(crate) fn answered(&self, surface: Surface, call: &'static str, code: &'static str, took: Duration) {
        let mut all = self.calls.lock();
        let calls = all
            .entry((surface, call))
            .or_insert_with(|| Calls { answered: BTreeMap::new(), took: Durations::short() });
        *calls.answered.entry(code).or_default() += 1;
        calls.took.add(took);
    }

    fn open(opened: &AtomicU64, ended: &AtomicU64) -> u64 {
        // Ended is read first: what opens in between may be missed, but the difference never wraps.
        let ended = ended.load(Relaxed);
        opened.load(Relaxed).saturating_sub(ended)
    }

    fn render(&self, page: &mut Page) {
        page.gauge("tenure_connections", "Client connections open now.")
            .value(Self::open(&self.connections_accepted, &self.connections_closed));
        page.counter("tenure_connections_accepted_total", "Client connections accepted since the start.")
            .value(self.connections_accepted.load(Relaxed));
        page.counter(
            "tenure_connections_refused_total",
            "Client connections refused because too many were open.",
        )
        .value(self.connections_refused.load(Relaxed));
        page.counter(
            "tenure_connections_made_room_total",
            "Idle client connections closed because the table was full and another one came.",
        )
        .value(self.connections_made_room.load(Relaxed));
        page.counter(
            "tenure_connections_idle_total",
            "Client connections closed because no request was under way for too long.",
        )
        .value(self.connections_idle.load(Relaxed));
        page.gauge("tenure_insecure", "1 if other machines reach a port of this node without TLS.")
            .value(u64::from(self.is_insecure()));
        page.counter(
            "tenure_tls_handshakes_failed_total",
            "TLS handshakes of clients that failed: not completed in time, or with a certificate that is not believed.",
        )
        .value(self.handshakes_failed.load(Relaxed));
        page.counter(
            "tenure_tls_handshakes_refused_total",
            "Client connections closed because too many TLS handshakes were under way.",
        )
        .value(self.handshakes_refused.load(Relaxed));
        page.counter(
            "tenure_tls_reload_failures_total",
            "Attempts to replace the certificate for clients that failed; the one before it stayed.",
        )
        .value(self.reload_failures.load(Relaxed));
        page.gauge(
            "tenure_tls_certificate_not_after_seconds",
            "When the certificate for clients ends, in seconds since 1970; 0 without TLS.",
        )
        .value(self.certificate_ends.load(Relaxed));
        page.gauge("tenure_watchers", "Watch streams open on this node now.")
            .value(Self::open(&self.watchers, &self.watchers_ended));
        page.gauge("tenure_waiting_requests", "Acquires that wait for their turn on this node now.")
            .value(Self::open(&self.waits, &self.waits_ended));
        let calls = self.calls.lock();
        let mut requests = page.counter(
            "tenure_requests_total",
            "Requests answered, by the code of the answer (`ok` if it was done).",
        );
        for ((surface, call), calls) in calls.iter() {
            for (code, count) in &calls.answered {
                requests.labelled(&[("surface", surface.as_str()), ("call", call), ("code", code)], count);
            }
        }
        let mut took = page.histogram(
            "tenure_request_duration_seconds",
            "From a request's head to its answer's; an acquire that waits and a watch count until they are answered.",
        );
        for ((surface, call), calls) in calls.iter() {
            took.durations(
                &[("surface", surface.as_str()), ("call", call)],
                calls.took.buckets(),
                calls.took.sum(),
            );
        }
    }
}

/// The whole page.
pub(crate) fn render(node: &Node, identity: &Identity, traffic: &Traffic, callers: &Callers) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.gauge("tenure_build_info", "Always 1; the version is in the label.")
        .labelled(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    render_machine(node, identity, &mut page);
    render_tally(node, &mut page);
    render_replica(node, &mut page);
    traffic.render(&mut page);
    render_callers(callers, &mut page);
    page.0
}

fn render_callers(callers: &Callers, page: &mut Page) {
    let (proved, refused) = callers.gate.counts();
    let mut identified =
        page.counter("tenure_identified_requests_total", "Requests whose caller proved who it is, by what.");
    for (proof, count) in proved {
        identified.labelled(&[("by", proof.as_str())], count);
    }
    page.counter(
        "tenure_unauthenticated_requests_total",
        "Requests refused because what they presented is not believed.",
    )
    .value(refused);
    page.gauge("tenure_active_identities", "Identities with something under way on this node.")
        .value(callers.shares.identities());
    if !callers.gate.issuers().is_empty() {
        let (reloads, failures) = callers.gate.issuers().counts();
        page.counter("tenure_jwks_reloads_total", "Changed files of issuers' keys that were read again.")
            .value(reloads);
        page.counter(
            "tenure_jwks_reload_failures_total",
            "Changed files of issuers' keys that could not be used; the old keys stayed.",
        )
        .value(failures);
    }
    if let Some((written, dropped, failing)) = callers.audit.counts() {
        page.counter("tenure_audit_lines_total", "Lines of the audit log written.").value(written);
        page.counter(
            "tenure_audit_lines_dropped_total",
            "Lines of the audit log lost: they could not be written, or too many waited for it.",
        )
        .value(dropped);
        page.gauge("tenure_audit_failing", "1 while the audit log cannot be written.")
            .value(u8::from(failing));
    }
}

fn render_machine(node: &Node, identity: &Identity, page: &mut Page) {
    let (counts, totals, revision, token, time, margins) = node.glance(|machine| {
        let token = machine.last_token().map_or(0, |token| token.get());
        let (revision, margins) = (machine.revision().get(), machine.margins().clone());
        (machine.counts(), *machine.totals(), revision, token, machine.time(), margins)
    });
    page.gauge("tenure_sessions", "Sessions alive, those ended and not yet cleared away among them.")
        .value(counts.sessions);
    page.gauge("tenure_leases", "Leases held: granted, and not ended yet.")
        .value(totals.grants.saturating_sub(totals.ends.iter().sum::<u64>()));
    page.gauge("tenure_resources", "Resources that are held, waited for, resting or pinned.")
        .value(counts.leases);
    page.gauge("tenure_resources_remembered", "Free resources whose history is remembered.")
        .value(counts.remembered);
    page.gauge("tenure_waiters", "Acquires that are queued.").value(counts.waiters);
    page.gauge("tenure_registers", "Registers that exist, or whose guard is remembered.")
        .value(counts.registers);
    page.counter("tenure_revision_total", "Visible changes so far: the cluster's revision.").value(revision);
    page.counter("tenure_tokens_total", "The last fencing token issued.").value(token);
    page.counter("tenure_cluster_time_seconds_total", "Cluster time: what the log itself has counted.")
        .value(Duration::from_micros(time.as_micros()).as_secs_f64());
    page.counter("tenure_grants_total", "Leases granted.").value(totals.grants);
    let mut ends = page.counter("tenure_ends_total", "Leases ended, by reason.");
    for (why, count) in EndReason::ALL.iter().zip(totals.ends) {
        ends.labelled(&[("why", why.as_str())], count);
    }
    page.counter("tenure_renewals_total", "Renewals that were answered ok, over the cluster's life.")
        .value(totals.renewals);
    let eighths = (1..=Margins::BUCKETS).map(|eighth| eighth as f64 / Margins::BUCKETS as f64);
    page.histogram(
        "tenure_renewal_margin_ratio",
        "What was left of its session when a renewal was applied, as a share of the TTL; 2/3 is usual. Since this node's start or last snapshot.",
    )
    .buckets(&[], eighths.map(Some).zip(margins.counts().iter().copied()), margins.sum());
    page.counter(
        "tenure_renewal_near_misses_total",
        "Renewals that found less than a quarter of the TTL left. Since this node's start or last snapshot.",
    )
    .value(margins.near_misses());
    page.counter("tenure_sessions_expired_total", "Sessions ended for want of a renewal.")
        .value(totals.sessions_expired);
    page.counter(
        "tenure_plain_sessions_unrenewed_total",
        "Sessions of acquires without nonce and number that expired without one renewal: their answers may never have arrived.",
    )
    .value(totals.plain_unrenewed);
    let hang_ups = node.hang_ups();
    let mut hung_up = page.counter(
        "tenure_acquire_hang_ups_total",
        "Acquires without number and nonce whose callers hung up before the answer left this node, by what the undo found.",
    );
    hung_up.labelled(&[("outcome", "released")], hang_ups.released.load(Relaxed));
    hung_up.labelled(&[("outcome", "not_held")], hang_ups.not_held.load(Relaxed));
    hung_up.labelled(&[("outcome", "failed")], hang_ups.failed.load(Relaxed));
    page.counter("tenure_fence_refusals_total", "Stale writes refused by fences, as they reported.")
        .value(totals.refused);
    render_fences(node, identity, page);
    page.counter("tenure_register_refusals_total", "Stale guarded writes that the registers refused.")
        .value(totals.register_refusals);
    page.counter("tenure_holder_pauses_total", "Pauses that holders reported.").value(totals.pauses);
    page.counter("tenure_leader_changes_total", "How often a node became leader.")
        .value(totals.leader_changes);
}

/// Fences shown one by one. Past it the page says how many it left out: a page of metrics must stay readable.
const FENCES_MAX: usize = 1_000;

/// Which fence has installed which token, and what each has prevented.
fn render_fences(node: &Node, identity: &Identity, page: &mut Page) {
    let (fences, all) = node.glance(|machine| {
        let access = Access::new(machine, identity);
        let seen = machine.all_fences().filter(|fence| access.reads_resource(&fence.resource));
        let shown: Vec<FenceView> = seen.take(FENCES_MAX).collect();
        (shown, machine.counts().fences)
    });
    page.gauge("tenure_fences", "Fences of all resources; the first thousand are shown one by one.")
        .value(all);
    let mut armed = page
        .gauge("tenure_fence_armed_token", "The token that a fence has installed; compare with the lease's.");
    for FenceView { resource, fence, armed: tokens, .. } in &fences {
        for ArmedView { slot, token, .. } in tokens {
            let slot = slot.map_or_else(String::new, |slot| slot.get().to_string());
            armed.labelled(
                &[("resource", resource.as_str()), ("fence", fence.as_str()), ("slot", &slot)],
                token,
            );
        }
    }
    let mut refused =
        page.counter("tenure_fence_refused_total", "Stale writes that a fence has refused, as it reported.");
    for FenceView { resource, fence, refused: writes, .. } in &fences {
        refused.labelled(&[("resource", resource.as_str()), ("fence", fence.as_str())], writes);
    }
}

fn render_tally(node: &Node, page: &mut Page) {
    let tally = node.event_hub().tally();
    page.counter("tenure_entries_applied_total", "Log entries applied by this node since its start.")
        .value(tally.entries.load(Relaxed));
    page.counter("tenure_commands_applied_total", "Commands applied by this node since its start.")
        .value(tally.commands.load(Relaxed));
    page.counter("tenure_commands_refused_total", "Commands that applying refused, since this node's start.")
        .value(tally.refusals.load(Relaxed));
    page.counter("tenure_renewals_applied_total", "Renewals applied by this node since its start.")
        .value(tally.renewals.load(Relaxed));
    page.gauge("tenure_entry_largest_commands", "The most renewals and commands that one entry had.")
        .value(tally.batch_largest.load(Relaxed));
    page.histogram(
        "tenure_expiry_lateness_seconds",
        "Cluster time by which expired leases outlived their deadline.",
    )
    .durations(&[], tally.late.buckets(), tally.late.sum());
    page.histogram("tenure_wait_seconds", "How long granted acquires had been queued.").durations(
        &[],
        tally.waited.buckets(),
        tally.waited.sum(),
    );
    page.histogram("tenure_hold_seconds", "How long leases were held.").durations(
        &[],
        tally.held.buckets(),
        tally.held.sum(),
    );
    page.histogram(
        "tenure_handover_gap_seconds",
        "After an exclusive lease was released, transferred, revoked or held too long: how long nobody held the resource until the next grant.",
    )
    .durations(&[], tally.handover_gap.buckets(), tally.handover_gap.sum());
    page.histogram(
        "tenure_holder_gap_seconds",
        "After the holder of an exclusive lease was lost (expired, died, taken_over): how long nobody held the resource until the next grant.",
    )
    .durations(&[], tally.holder_gap.buckets(), tally.holder_gap.sum());
    let mut refused = page.counter(
        "tenure_fence_refusals_by_adapter_total",
        "Stale writes refused by fences, as they reported to this cluster since this node's start; the adapter is what precedes the colon of a fence's name.",
    );
    for (adapter, count) in tally.refused_by_adapter() {
        refused.labelled(&[("adapter", &adapter)], count);
    }
}

fn render_replica(node: &Node, page: &mut Page) {
    let status = node.status();
    let (replica, leader_loop) = (&status.replica, &status.leader_loop);
    page.gauge("tenure_node", "This node's number.").value(replica.node);
    page.gauge("tenure_leader", "The leader's number; zero while none is known.")
        .value(replica.leader.unwrap_or(0));
    page.gauge("tenure_is_leader", "1 on the node that leads.").value(u8::from(replica.role == Role::Leader));
    page.gauge("tenure_term", "The current term.").value(replica.term);
    let format = node.format().get();
    page.gauge("tenure_format_version", "The format version that the cluster has agreed on.").value(format);
    page.gauge(
        "tenure_format_upgrade_possible",
        "1 if every member, as last heard, knows a newer format version than the agreed one: see `tenure cluster upgrade`.",
    )
    .value(u8::from(replica.protocol > u16::from(format)));
    page.gauge(
        "tenure_sessions_plain",
        "Sessions whose secrets are stored as their openers know them: opened before format version 2.",
    )
    .value(node.glance(Machine::plain_sessions));
    page.gauge("tenure_peer_protocol", "The newest peer protocol that all members understand.")
        .value(replica.protocol);
    page.gauge("tenure_voters", "Members that vote.").value(replica.voters.len());
    page.gauge("tenure_log_last_index", "The last entry in this node's log.")
        .value(replica.last_log_index.unwrap_or(0));
    page.gauge("tenure_log_committed_index", "The last entry known to be committed.")
        .value(replica.committed.unwrap_or(0));
    page.gauge("tenure_log_applied_index", "The last entry applied.").value(replica.applied.unwrap_or(0));
    page.gauge("tenure_snapshot_index", "The last entry covered by a snapshot.")
        .value(replica.snapshot_index.unwrap_or(0));
    page.gauge("tenure_log_purged_index", "The last entry that a snapshot has replaced in the log.")
        .value(replica.purged.unwrap_or(0));
    page.gauge("tenure_log_disk_bytes", "Size of the log's files.").value(replica.log.disk_bytes);
    page.gauge("tenure_log_segments", "Files of the log.").value(replica.log.segments);
    let (bytes, first, last) = node.past_events().files.held();
    page.gauge("tenure_event_files_bytes", "Size of the files of past events.").value(bytes);
    page.gauge("tenure_event_files_first_revision", "The oldest revision in them; zero if there is none.")
        .value(first);
    page.gauge("tenure_event_files_last_revision", "The newest revision in them.").value(last);
    page.counter("tenure_log_written_bytes_total", "Bytes written to the log since the start.")
        .value(replica.log.written_bytes);
    page.counter("tenure_log_frames_total", "Group commits written since the start.")
        .value(replica.log.frames);
    page.counter("tenure_log_records_total", "Records in these group commits.").value(replica.log.records);
    page.gauge("tenure_log_sync_longest_seconds", "The longest sync of the log since the start.")
        .value(replica.log.sync.longest.as_secs_f64());
    let durations = &replica.log.sync.durations;
    page.histogram("tenure_log_sync_seconds", "How long writing to the log and syncing it took.").durations(
        &[],
        durations.buckets.iter().copied(),
        durations.sum,
    );
    let mut lag =
        page.gauge("tenure_peer_lag_entries", "On the leader: how many entries a member is behind.");
    for peer in &replica.peers {
        if let Some(behind) = peer.lag {
            lag.labelled(&[("node", &peer.node.to_string())], behind);
        }
    }
    page.gauge("tenure_leading", "1 while this node leads and counts cluster time.")
        .value(u8::from(leader_loop.is_leading));
    page.counter("tenure_terms_led_total", "How often this node became leader since its start.")
        .value(leader_loop.terms_led);
    let mut waiting =
        page.gauge("tenure_leader_queue_requests", "Requests queued at the leader for an entry, by queue.");
    waiting.labelled(&[("queue", "renewals")], leader_loop.waiting.renewals);
    waiting.labelled(&[("queue", "opens")], leader_loop.waiting.opens);
    waiting.labelled(&[("queue", "commands")], leader_loop.waiting.commands);
    page.gauge("tenure_leader_queue_bytes", "Bytes of the queued opens and commands.")
        .value(leader_loop.waiting.open_bytes + leader_loop.waiting.command_bytes);
    page.gauge("tenure_entries_in_flight", "Entries proposed and not yet answered.")
        .value(leader_loop.in_flight);
    page.counter(
        "tenure_time_dropped_seconds_total",
        "Time measured and counted against nobody, because of the cap.",
    )
    .value(leader_loop.dropped.as_secs_f64());
    page.gauge(
        "tenure_leader_clock_fast_ratio",
        "By how much cluster time runs ahead of this node's clock, as a share; 0 while rho allows it.",
    )
    .value(node.replica().machine().read().leader_fast_ppm() as f64 / 1e6);
    page.counter("tenure_leader_overloaded_total", "Requests refused because the leader's queue was full.")
        .value(leader_loop.overloaded);
    let forwarded = node.forwarder().numbers();
    let mut unanswered = page.gauge(
        "tenure_forward_unanswered",
        "On a follower: what was forwarded to the leader, or is about to be, and has no answer yet.",
    );
    unanswered.labelled(&[("queue", "commands")], forwarded.commands);
    unanswered.labelled(&[("queue", "renewals")], forwarded.renewals);
    page.gauge("tenure_forward_unanswered_bytes", "Bytes of the commands among them.")
        .value(forwarded.command_bytes);
    page.counter("tenure_forward_commands_total", "Commands forwarded to the leader since the start.")
        .value(forwarded.commands_sent);
    page.counter("tenure_forward_messages_total", "Messages that these commands travelled in.")
        .value(forwarded.messages_sent);
    page.counter(
        "tenure_forward_overloaded_total",
        "Commands, and calls with renewals, refused because too many forwarded ones had no answer yet.",
    )
    .value(forwarded.overloaded);
}

/// Text in the Prometheus exposition format.
struct Page(String);

/// One family of the page: its help and type are written, its samples follow.
struct Family<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: &mut self.0, name }
    }

    fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    fn histogram(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "histogram", help)
    }
}

impl Family<'_> {
    fn value(&mut self, value: impl Display) {
        self.labelled(&[], value);
    }

    fn labelled(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample("", labels, value);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.page, "{}{suffix}", self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.page, "{}{name}=\"{}\"", if at == 0 { '{' } else { ',' }, Escaped(value));
        }
        let _ = writeln!(self.page, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn durations(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<Duration>, u64)>,
        sum: Duration,
    ) {
        let seconds = |bound: Option<Duration>| bound.map(|bound| bound.as_secs_f64());
        self.buckets(labels, buckets.map(|(bound, count)| (seconds(bound), count)), sum.as_secs_f64());
    }

    /// Buckets as they were counted, one by one; Prometheus wants them added up.
    fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut count = 0;
        let mut unbounded = false;
        let with_bound = |family: &mut Self, bound: &str, count: u64| {
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            family.sample("_bucket", &labels, count);
        };
        for (bound, number) in buckets {
            count += number;
            unbounded |= bound.is_none();
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            with_bound(self, &bound, count);
        }
        if !unbounded {
            with_bound(self, "+Inf", count);
        }
        self.sample("_sum", labels, sum);
        self.sample("_count", labels, count);
    }
}

/// A label's value, with what would end it made harmless.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_as_prometheus_wants_it() {
        let mut page = Page(String::new());
        page.gauge("tenure_x", "What x is.").labelled(&[("a", "q\"\\\n"), ("b", "c")], 3);
        let ms = Duration::from_millis;
        let buckets = [(Some(ms(1)), 2), (Some(ms(1500)), 3), (None, 1)];
        page.histogram("tenure_y_seconds", "What y is.").durations(&[], buckets.into_iter(), ms(2500));
        assert_eq!(
            page.0,
            "# HELP tenure_x What x is.\n# TYPE tenure_x gauge\ntenure_x{a=\"q\\\"\\\\\\n\",b=\"c\"} 3\n\
             # HELP tenure_y_seconds What y is.\n# TYPE tenure_y_seconds histogram\n\
             tenure_y_seconds_bucket{le=\"0.001\"} 2\ntenure_y_seconds_bucket{le=\"1.5\"} 5\n\
             tenure_y_seconds_bucket{le=\"+Inf\"} 6\ntenure_y_seconds_sum 2.5\ntenure_y_seconds_count 6\n"
        );
    }
}
