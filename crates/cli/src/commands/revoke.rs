//! `tenure revoke`: an administrator ends leases. By notice, so that the holder stops first; or at once,
//! where only fences protect.

use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::{ResourceName, SessionNumber};
use tenure_wire::grpc;
use tenure_wire::json::Revoked;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::words::span;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure revoke settlement/cron --reason 'stuck since 03:00'
  tenure revoke settlement/cron --now --reason 'host is on fire'

Without --now the holder is given notice: the lease ends when it confirms, or when what was left of its session is \
over, whichever comes first. With --now the lease ends at once and the holder may not know it yet: only storage that \
checks tokens keeps its writes out.";

/// End the leases of a resource, as an administrator
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Whose leases to end
    pub resource: ResourceName,
    /// End them at once instead of giving notice; only fences protect then
    #[arg(long)]
    pub now: bool,
    /// Why, for people; kept in the history
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Only the lease of the session with this public number
    #[arg(long, value_name = "NUMBER")]
    pub only: Option<u64>,
}

/// Ends the leases, or gives notice.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let only = args.only.map(SessionNumber::new);
    let request = grpc::revoke_request(&args.resource, only, args.now, &args.reason);
    let send = |channel, request| async move { LeasesClient::new(channel).revoke(request).await };
    let answer = context.change(request, send).await?;
    let shape = Revoked {
        resource: args.resource.to_string(),
        holders: answer.holdings.iter().map(tenure_wire::json::Holder::from).collect(),
        token: answer.token,
    };
    context.output.tell(|| shapes::value(&shape), |_| words(&shape, args.now))?;
    if shape.holders.is_empty() { Ok(Exit::NotFound) } else { Ok(Exit::Done) }
}

fn words(revoked: &Revoked, now: bool) -> String {
    let resource = &revoked.resource;
    if revoked.holders.is_empty() {
        return format!("nobody holds {resource}: there is nothing to revoke");
    }
    let mut lines: Vec<String> = Vec::new();
    for holder in &revoked.holders {
        let who = format!("{} (session {}, token {})", holder.holder, holder.session_number, holder.token);
        lines.push(if now {
            format!("ended the lease of {who} on {resource}")
        } else {
            format!(
                "gave notice to {who}: {resource} is free when it confirms, or in {}",
                span(holder.remaining_ms)
            )
        });
    }
    if let Some(token) = revoked.token {
        lines.push(format!(
            "token {token} was issued without a holder: install it in fences that later grants may not reach"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use tenure_client::proto;

    fn revoked(token: Option<u64>) -> Revoked {
        let holding = proto::Holding {
            session_number: 7,
            holder: "node-a".into(),
            token: 12,
            remaining_ms: 7200,
            ..Default::default()
        };
        Revoked {
            resource: "settlement/cron".into(),
            holders: vec![tenure_wire::json::Holder::from(&holding)],
            token,
        }
    }

    #[test]
    fn notice_and_end_are_distinguished() {
        expect!["gave notice to node-a (session 7, token 12): settlement/cron is free when it confirms, or in 7.2s"]
            .assert_eq(&words(&revoked(None), false));
        expect![[r#"
            ended the lease of node-a (session 7, token 12) on settlement/cron
            token 13 was issued without a holder: install it in fences that later grants may not reach"#]]
        .assert_eq(&words(&revoked(Some(13)), true));
    }
}
