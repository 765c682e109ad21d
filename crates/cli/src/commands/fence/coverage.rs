//! `tenure fence ls`: what the store knows of the fences of its resources.

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::fences_client::FencesClient;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::Form;
use crate::render::table::Table;

const EXAMPLES: &str = "\
Examples:
  tenure fence ls
  tenure fence ls settlement/ --json | jq 'select(.armed == []) | .resource'

A fence is armed when it has installed the newest token of its resource: then nothing that an earlier holder sent can \
land in it. One that is behind lets late writes of the previous holder pass until the newest token reaches it.";

/// List the fences of resources: which token each has installed, what each has refused
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Only resources whose names begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
}

/// Lists them.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let fences = all(&args.prefix, context).await?;
    if context.output.is_json() {
        for fence in &fences {
            context.output.line(&as_json(fence).to_string())?;
        }
        return Ok(Exit::Done);
    }
    if fences.is_empty() {
        context
            .output
            .talk("no fence is known: without one, only a holder's own clock keeps its late writes out");
    }
    context.output.line(&words(&fences, context.output.form()))?;
    Ok(Exit::Done)
}

/// All fences below a prefix, page by page.
pub async fn all(prefix: &str, context: &Context<'_>) -> Result<Vec<proto::FenceView>, CommandError> {
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let request =
            proto::FenceListRequest { prefix: prefix.to_owned(), limit: None, after: after.clone() };
        let send = |channel, request| async move { FencesClient::new(channel).list(request).await };
        let page = context.read(request, send).await?;
        all.extend(page.fences);
        after = page.next;
        if after.is_empty() {
            return Ok(all);
        }
    }
}

fn as_json(fence: &proto::FenceView) -> serde_json::Value {
    let armed: Vec<_> = fence
        .armed
        .iter()
        .map(|armed| json!({"slot": armed.slot, "token": armed.token, "current": armed.current}))
        .collect();
    json!({"resource": fence.resource, "fence": fence.fence, "armed": armed, "refused": fence.refused})
}

fn words(fences: &[proto::FenceView], form: Form) -> String {
    let mut table = Table::new(&["RESOURCE", "FENCE", "ARMED WITH", ">REFUSED"]);
    for fence in fences {
        let armed: Vec<String> = fence
            .armed
            .iter()
            .map(|armed| {
                let slot = armed.slot.map(|slot| format!("#{slot}: ")).unwrap_or_default();
                let behind = if armed.current { "" } else { " (behind)" };
                format!("{slot}{}{behind}", armed.token)
            })
            .collect();
        let armed = if armed.is_empty() { "nothing yet".to_owned() } else { armed.join(", ") };
        table.row([fence.resource.clone(), fence.fence.clone(), armed, fence.refused.to_string()]);
    }
    table.render(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Paint;
    use expect_test::expect;

    #[test]
    fn a_fence_that_is_behind_says_so() {
        let fence = |name: &str, armed: &[(Option<u32>, u64, bool)], refused| proto::FenceView {
            resource: "settlement/cron".into(),
            fence: name.into(),
            armed: armed
                .iter()
                .map(|(slot, token, current)| proto::ArmedToken {
                    slot: *slot,
                    token: *token,
                    current: *current,
                })
                .collect(),
            refused,
            refused_unix_ms: None,
        };
        let fences = [
            fence("postgres:ledger", &[(None, 12, true)], 14),
            fence("s3:reports", &[(Some(0), 7, true), (Some(1), 8, false)], 0),
            fence("redis:cache", &[], 0),
        ];
        expect![[r#"
            RESOURCE         FENCE            ARMED WITH             REFUSED
            settlement/cron  postgres:ledger  12                          14
            settlement/cron  s3:reports       #0: 7, #1: 8 (behind)        0
            settlement/cron  redis:cache      nothing yet                  0
        "#]]
        .assert_eq(&words(&fences, Form::Terminal(Paint::new(false))));
    }
}
