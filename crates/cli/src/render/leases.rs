//! Leases, sessions, registers and nodes as text.

use tenure_client::proto;
use tenure_wire::json::{
    ArmedBody, ClusterStatus, Fence, Granted, HistoryDropped, Holder, Lease, NodeStatus, Register, Transition,
};

use super::paint::Form;
use super::table::Table;
use super::words::{and, brief, bytes, count, grouped, mode_and_slot, short_time, span, tame};

/// Shell assignments for `eval`: of one lease, or numbered ones of several.
pub fn export(grants: &[Granted], endpoints: &str) -> String {
    let mut lines = Vec::new();
    let mut assign = |name: &str, value: &str| lines.push(format!("export TENURE_{name}={}", quoted(value)));
    for (index, grant) in grants.iter().enumerate() {
        let name =
            |name: &str| if grants.len() == 1 { name.to_owned() } else { format!("{name}_{}", index + 1) };
        assign(&name("RESOURCE"), &grant.resource);
        assign(&name("TOKEN"), &grant.token.to_string());
        assign(&name("GENERATION"), &grant.generation.to_string());
        if let Some(slot) = grant.slot {
            assign(&name("SLOT"), &slot.to_string());
        }
    }
    if let Some(grant) = grants.first() {
        assign("SESSION", grant.session.as_deref().unwrap_or_default());
        assign("HOLDER", &grant.holder);
        assign("TTL_MS", &grant.ttl_ms.to_string());
    }
    assign("ENDPOINTS", endpoints);
    lines.join("\n")
}

/// A word for the shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What an acquire was granted.
pub fn granted(grants: &[Granted], form: Form) -> String {
    let Form::Terminal(paint) = form else {
        let mut table = Table::new(&["RESOURCE", ">TOKEN", "SESSION", ">TTL"]);
        for grant in grants {
            let session = grant.session.clone().unwrap_or_default();
            table.row([grant.resource.clone(), grant.token.to_string(), session, grant.ttl_ms.to_string()]);
        }
        return table.render(form);
    };
    let mut lines = Vec::new();
    for grant in grants {
        let slot = grant.slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
        let waited = if grant.waited_ms > 0 {
            format!(" after {} in the queue", span(grant.waited_ms))
        } else {
            String::new()
        };
        lines.push(format!(
            "{} {} is {}'s{waited}: {}, generation {}{slot}",
            paint.good("granted"),
            paint.strong(&grant.resource),
            grant.holder,
            paint.strong(&format!("token {}", grant.token)),
            grant.generation,
        ));
    }
    if let Some(grant) = grants.first() {
        let session = grant.session.as_deref().unwrap_or_default();
        lines.push(format!("session {session}, {} unless renewed", span(grant.ttl_ms)));
    }
    lines.join("\n")
}

/// One resource, line by line.
pub fn lease(lease: &Lease, form: Form) -> String {
    let paint = form.paint();
    let mut lines: Vec<(&str, String)> = Vec::new();
    lines.push(("resource", paint.strong(&lease.resource)));
    lines.push(("state", if lease.holders.is_empty() { paint.good("free") } else { paint.warn("held") }));
    for holder in &lease.holders {
        lines.push(("holder", holder_line(holder)));
    }
    if let Some(token) = lease.token {
        lines.push(("token", token.to_string()));
        lines.push(("generation", lease.generation.to_string()));
    }
    if let Some(remaining) = lease.remaining_ms {
        lines.push(("remaining", span(remaining)));
    }
    if let Some(delayed) = lease.delayed_ms {
        lines.push(("delayed", format!("{} (lock-delay after an unclean end)", span(delayed))));
    }
    lines.push(("waiters", lease.waiting.to_string()));
    for fence in &lease.fences {
        lines.push(("fence", fence_line(fence, lease)));
    }
    columns(&lines, form)
}

/// Who holds, under what, and whether it is to end.
pub(super) fn holder_line(holder: &Holder) -> String {
    let mut line = format!(
        "{} (session {}, token {}, {}",
        holder.holder,
        holder.session_number,
        holder.token,
        mode_and_slot(holder.mode, holder.slot),
    );
    if let Some(notice) = &holder.notice {
        line += &format!(", under notice: {notice}");
    }
    if holder.lapsed {
        line += ", lapsed";
    }
    line + ")"
}

/// One fence: what it has installed, whether that is enough, what it has prevented.
fn fence_line(fence: &Fence, lease: &Lease) -> String {
    let armed: Vec<String> = fence
        .armed
        .iter()
        .map(|armed| {
            let slot = armed.slot.map(|slot| format!("#{slot}: ")).unwrap_or_default();
            let behind = if is_newest(armed, lease) { "" } else { " (behind)" };
            format!("{slot}{}{behind}", armed.token)
        })
        .collect();
    let armed = if armed.is_empty() { "no token".to_owned() } else { format!("token {}", armed.join(", ")) };
    let refused = count(fence.refused, "stale write", "stale writes");
    format!("{} (armed with {armed}, refused {refused})", fence.fence)
}

/// Whether a fence has installed the newest token of its scope, as far as the lease shows it.
fn is_newest(armed: &ArmedBody, lease: &Lease) -> bool {
    match armed.slot {
        None => lease.token.is_none_or(|token| armed.token >= token),
        Some(slot) => {
            lease.holders.iter().all(|holder| holder.slot != Some(slot) || armed.token >= holder.token)
        }
    }
}

/// How many of a lease's fences hold late writes back now.
fn coverage(lease: &Lease) -> String {
    let covers =
        |fence: &&Fence| !fence.armed.is_empty() && fence.armed.iter().all(|armed| is_newest(armed, lease));
    match (lease.fences.len(), lease.fences.iter().filter(covers).count()) {
        (0, _) => "none".to_owned(),
        (all, armed) if all == armed => format!("{all} armed"),
        (all, armed) => format!("{armed} of {all} armed"),
    }
}

/// Names and values, the values under each other for eyes.
pub(super) fn columns(lines: &[(&str, String)], form: Form) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| match form {
        Form::Plain => format!("{name}\t{value}\n"),
        Form::Terminal(paint) => format!("{}  {value}\n", paint.faint(&format!("{name:width$}"))),
    };
    lines.iter().map(line).collect()
}

/// Resources that are held.
pub fn list(leases: &[Lease], form: Form) -> String {
    let mut table =
        Table::new(&["RESOURCE", "HOLDER", ">TOKEN", ">GEN", ">LEFT", "HELD AS", ">WAITING", "FENCES"]);
    for lease in leases {
        // A resource that only waits or rests has no holder; it is listed all the same.
        let rows: Vec<Option<&Holder>> =
            if lease.holders.is_empty() { vec![None] } else { lease.holders.iter().map(Some).collect() };
        for holder in rows {
            let shown = |show: &dyn Fn(&Holder) -> String| holder.map_or_else(|| "-".to_owned(), show);
            table.row([
                lease.resource.clone(),
                shown(&|holder| holder.holder.clone()),
                shown(&|holder| holder.token.to_string()),
                shown(&|holder| holder.generation.to_string()),
                shown(&|holder| left(holder)),
                shown(&|holder| mode_and_slot(holder.mode, holder.slot)),
                lease.waiting.to_string(),
                coverage(lease),
            ]);
        }
    }
    table.render(form)
}

fn left(holder: &Holder) -> String {
    match (&holder.notice, holder.lapsed) {
        (Some(_), _) => format!("{} (notice)", span(holder.remaining_ms)),
        (None, true) => "lapsed".to_owned(),
        (None, false) => span(holder.remaining_ms),
    }
}

/// What is held now, then past leases, the newest first.
pub fn history(present: &[Holder], past: &[Transition], form: Form) -> String {
    let mut table =
        Table::new(&[">TOKEN", ">GEN", "HOLDER", ">SESSION", "HELD AS", "FROM", "TO", ">HELD", "WHY"]);
    for holder in present {
        let held = span(holder.held_ms);
        table.row([
            holder.token.to_string(),
            holder.generation.to_string(),
            holder.holder.clone(),
            holder.session_number.to_string(),
            mode_and_slot(holder.mode, holder.slot),
            format!("{held} ago"),
            "now".to_owned(),
            held,
            "held".to_owned(),
        ]);
    }
    for lease in past {
        let why = match &lease.reason {
            Some(reason) => format!("{}: {}", lease.why, tame(reason)),
            None => lease.why.clone(),
        };
        table.row([
            lease.token.to_string(),
            lease.generation.to_string(),
            lease.holder.clone(),
            lease.session_number.to_string(),
            mode_and_slot(lease.mode, lease.slot),
            short_time(&lease.from),
            short_time(&lease.to),
            span(lease.held_ms),
            why,
        ]);
    }
    table.render(form)
}

/// Where a history was cut, and by what.
pub fn dropped(dropped: &HistoryDropped) -> String {
    let were = if dropped.leases == 1 { "lease was" } else { "leases were" };
    let mut text = format!("{} older {were} dropped", dropped.leases);
    if let (Some(limit), Some(max)) = (&dropped.limit, dropped.max) {
        text.push_str(&format!(" by the limit {limit} = {max}"));
    }
    if let (Some(token), Some(ended)) = (dropped.token, &dropped.ended) {
        text.push_str(&format!(
            "; every lease above token {token} is listed (the last one dropped ended {})",
            short_time(ended)
        ));
    }
    text
}

/// Live sessions.
pub fn sessions(sessions: &[proto::SessionSummary], form: Form) -> String {
    let mut table = Table::new(&[">SESSION", "HOLDER", ">TTL", ">LEFT", ">LEASES", ">WAITING"]);
    for session in sessions {
        table.row([
            session.session_number.to_string(),
            session.holder.clone(),
            span(session.ttl_ms),
            if session.lapsed { "lapsed".to_owned() } else { span(session.remaining_ms) },
            session.leases.to_string(),
            session.waiting.to_string(),
        ]);
    }
    table.render(form)
}

/// Registers.
pub fn registers(registers: &[Register], form: Form) -> String {
    let mut table = Table::new(&["KEY", ">VERSION", ">REVISION", "GUARD", "VALUE"]);
    // A line for eyes has to fit; a program gets the whole value, in one line.
    let most = if form == Form::Plain { usize::MAX } else { 60 };
    for register in registers {
        let value = match (&register.value, &register.value_base64) {
            (Some(text), _) => brief(text, most),
            (None, Some(base64)) => format!("base64:{}", brief(base64, most)),
            (None, None) => "-".to_owned(),
        };
        table.row([
            key(register),
            register.version.to_string(),
            register.mod_revision.to_string(),
            register.guard.clone().unwrap_or_else(|| "-".to_owned()),
            value,
        ]);
    }
    table.render(form)
}

/// A register's key, on one line.
pub fn key(register: &Register) -> String {
    match (&register.key, &register.key_base64) {
        (Some(text), _) => tame(text),
        (None, base64) => format!("base64:{}", base64.as_deref().unwrap_or_default()),
    }
}

/// The cluster in a few sentences, and its nodes in a table.
pub fn cluster(status: &ClusterStatus, form: Form) -> String {
    let mut table = Table::new(&[">NODE", "ROLE", "CLIENTS", "PEERS", ">LOG", ">BEHIND", "HEARD", "VERSION"]);
    let furthest = status.nodes.iter().filter_map(|node| node.last_log).max().unwrap_or(0);
    let number = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    for node in &status.nodes {
        table.row([
            node.node.to_string(),
            node.role.clone(),
            node.client_address.clone(),
            node.peer_address.clone(),
            number(node.last_log),
            number(node.last_log.map(|index| furthest - index)),
            if node.reachable { "yes" } else { "no" }.to_owned(),
            node.version.clone(),
        ]);
    }
    let Form::Terminal(paint) = form else { return table.render(form) };
    let leader = match status.leader {
        Some(leader) => format!("node {leader} leads in term {}", status.term),
        None => paint.bad("nobody leads"),
    };
    let mut text = format!("cluster {}: {leader}.\n", status.cluster);
    let learners: Vec<&NodeStatus> = status.nodes.iter().filter(|node| node.role == "learner").collect();
    if !status.fault_tolerant {
        text += &paint.warn(match status.nodes.len() - learners.len() {
            0 | 1 => "A single node: durable, not fault-tolerant. While it is down nothing is granted.",
            _ => "Durable, not fault-tolerant: while any one of the voters is down nothing is granted. Have three or five.",
        });
        text.push('\n');
    }
    if let Some(next) = status.format_next {
        text += &paint.warn(&format!(
            "Every node knows format version {next}; version {} is agreed on. When you no longer want to return to the \
             older release: tenure cluster upgrade",
            status.format
        ));
        text.push('\n');
    }
    if let Some(plain) = status.plain_sessions.filter(|_| status.format >= 2) {
        text += &format!(
            "{plain} of its sessions were opened before format version 2: their ids stand in the log and in snapshots until \
             they end.\n"
        );
    }
    if !learners.is_empty() {
        let numbers: Vec<String> = learners.iter().map(|node| node.node.to_string()).collect();
        let again: String =
            learners.iter().map(|node| format!(" {}={}", node.node, node.peer_address)).collect();
        let (nodes, do_not) =
            if learners.len() == 1 { ("Node", "learns and does") } else { ("Nodes", "learn and do") };
        text += &format!(
            "{nodes} {} {do_not} not vote yet; if nobody is adding them: tenure cluster add{again}\n",
            and(&numbers)
        );
    }
    if let Some(staging) = &status.staging {
        text += &paint.warn(&format!(
            "A restore is staged and not visible yet: {} records, {}, {}; it is discarded in {} unless it goes on.",
            grouped(staging.records),
            bytes(staging.bytes),
            count(staging.pieces, "piece", "pieces"),
            span(staging.discarded_in_ms)
        ));
        text.push('\n');
    }
    if let Some(restoring) = status.restoring_ms {
        text += &paint
            .warn(&format!("Restored from a backup: nothing is granted for another {}.", span(restoring)));
        text.push('\n');
    }
    text += &format!(
        "{}, {}, {}; last token {}, revision {}, format version {}; node {} has applied {} of {}.\n",
        count(status.sessions, "session", "sessions"),
        count(status.leases, "resource in use", "resources in use"),
        count(status.waiters, "waiter", "waiters"),
        status.last_token,
        status.revision,
        status.format,
        status.node,
        status.applied,
        status.committed,
    );
    if let Some(hash) = &status.state_hash {
        text += &format!("The state at {} hashes to {hash}.\n", status.applied);
    }
    text.push('\n');
    text + &table.render(form)
}

#[cfg(test)]
mod tests;
