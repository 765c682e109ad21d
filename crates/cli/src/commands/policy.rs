//! `tenure policy`: who may do what where. What a policy means is decided by the cluster; `policy test` asks the same
//! question of policies that are not stored.

use std::io::Read;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::auth_client::AuthClient;
use tenure_core::{Identity, Policy, Verb};
use tenure_wire::json as shapes_json;
use tenure_wire::policy_text::{
    POLICY_TEXT_BYTES_MAX, WrittenPolicy, holder, policy_text, read_policies, set_limit, verbs,
};

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::auth as render;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure policy put pay-team --who cred/pay-worker --on pay/ --may hold,read
  tenure policy put ci --who 'jwt/ci/*' --on deploy/ --may hold --limit leases=10 --limit ttl_max=60s
  tenure policy put -f policies.txt          several at once, as `tenure policy ls` writes them to a pipe
  tenure policy test -f policies.txt --as cred/pay-worker hold pay/settlement
  tenure policy ls
  tenure policy rm pay-team

A file has a few lines for each policy, or is a JSON array:
  policy pay-team
  who    cred/pay-worker, jwt/k8s/system:serviceaccount:pay:*
  on     pay/
  may    hold, read
  holder self
  limits leases=100 waiters=1000 ttl_max=60s

A policy only allows; what none allows is denied. A prefix ends at a slash: pay/ is about pay and pay/x, not payroll.
Verbs: read, hold, write, manage, observe, operate, grant.";

/// Store, remove, list and try out policies: who may do what where
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add or replace policies; leases that nothing allows any more get notice
    Put(PutArgs),
    /// Take a policy away; leases that nothing allows any more get notice
    Rm(RmArgs),
    /// List the policies, or show one
    Ls(LsArgs),
    /// Say what policies would allow, without storing them
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
struct PutArgs {
    /// The name of the policy that the options describe
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    #[command(flatten)]
    source: Source,
    /// End leases that nothing allows any more at once, where only fences protect
    #[arg(long)]
    now: bool,
}

/// Where policies come from: a file, or options.
#[derive(Debug, clap::Args)]
struct Source {
    /// Read policies from a file, text or JSON; `-` is stdin
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["who", "on", "may", "holder", "limit"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArgs,
}

/// One policy, in options.
#[derive(Debug, Default, clap::Args)]
pub struct PolicyArgs {
    /// Whom it is for: cred/NAME, cert/NAME, jwt/ISSUER/SUBJECT, `jwt/ISSUER/*`, `*` or anyone
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub who: Vec<String>,
    /// What it is about: prefixes such as pay/; `*` is everything
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub on: Vec<String>,
    /// What they may do: read, hold, write, manage, observe, operate, grant
    #[arg(long, value_name = "VERB", value_delimiter = ',')]
    pub may: Vec<String>,
    /// Bind the names of their holders to their own
    #[arg(long, value_name = "RULE", value_parser = ["self", "any"])]
    pub holder: Option<String>,
    /// How much of it: sessions, leases, waiters, registers, bytes, ttl_max, priority_max
    #[arg(long, value_name = "NAME=VALUE")]
    pub limit: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// The policy
    name: String,
    /// End leases that nothing allows any more at once, where only fences protect
    #[arg(long)]
    now: bool,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Only this one
    name: Option<String>,
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    #[command(flatten)]
    source: Source,
    /// Whom it is about: an identity such as cred/pay-worker, or `anyone`
    #[arg(long = "as", value_name = "ID")]
    identity: String,
    /// read, hold, write, manage, observe, operate or grant
    verb: String,
    /// A resource, a register, or `*` for the whole cluster
    name: String,
    /// Judge by the proposed policies alone, without those that are stored; asks no cluster
    #[arg(long)]
    alone: bool,
}

/// Does what was asked for.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::Put(args) => put(args, context).await,
        Command::Rm(args) => remove(args, context).await,
        Command::Ls(args) => list(args, context).await,
        Command::Test(args) => test(args, context).await,
    }
}

impl PolicyArgs {
    /// The policy of this name.
    pub fn policy(&self, name: &str) -> Result<WrittenPolicy, CommandError> {
        let wrong = |why: String| CommandError::said(Exit::Usage, why);
        let lacks =
            |option: &str| wrong(format!("{option} is missing: a policy needs --who, --on and --may"));
        let mut policy = Policy::default();
        for who in &self.who {
            policy.who.push(who.trim().parse().map_err(|error| wrong(format!("--who {who}: {error}")))?);
        }
        for on in &self.on {
            policy.on.push(on.trim().parse().map_err(|error| wrong(format!("--on {on}: {error}")))?);
        }
        if policy.who.is_empty() {
            return Err(lacks("--who"));
        }
        if policy.on.is_empty() {
            return Err(lacks("--on"));
        }
        if self.may.is_empty() {
            return Err(lacks("--may"));
        }
        policy.may = verbs(&self.may.join(",")).map_err(wrong)?;
        if let Some(rule) = &self.holder {
            policy.holder = holder(rule).map_err(wrong)?;
        }
        for limit in &self.limit {
            set_limit(&mut policy.limits, limit).map_err(wrong)?;
        }
        let name =
            name.parse().map_err(|error| wrong(format!("{name} cannot be a policy's name: {error}")))?;
        Ok(WrittenPolicy { name, policy })
    }
}

impl Source {
    /// The policies; `name` is that of the one in the options.
    fn policies(&self, name: &str) -> Result<Vec<WrittenPolicy>, CommandError> {
        let Some(file) = &self.file else { return Ok(vec![self.policy.policy(name)?]) };
        let shown = file.display();
        let unreadable = |error: std::io::Error| {
            CommandError::said(Exit::Usage, format!("{shown} cannot be read: {error}"))
        };
        let mut text = String::new();
        let most = POLICY_TEXT_BYTES_MAX as u64 + 1;
        match file.as_os_str() == "-" {
            true => std::io::stdin().take(most).read_to_string(&mut text).map_err(unreadable)?,
            false => std::fs::File::open(file)
                .and_then(|file| file.take(most).read_to_string(&mut text))
                .map_err(unreadable)?,
        };
        read_text(&text).map_err(|why| CommandError::said(Exit::Usage, format!("{shown}: {why}")))
    }
}

/// Policies in words, or in JSON: one object, an array, or one object per line.
fn read_text(text: &str) -> Result<Vec<WrittenPolicy>, String> {
    if !text.trim_start().starts_with(['{', '[']) {
        return read_policies(text).map_err(|error| error.to_string());
    }
    let mut found: Vec<shapes_json::NamedPolicy> = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>() {
        let value = value.map_err(|error| error.to_string())?;
        let many = if value.is_array() { value } else { json!([value]) };
        let many: Vec<shapes_json::NamedPolicy> =
            serde_json::from_value(many).map_err(|error| error.to_string())?;
        found.extend(many);
    }
    let checked = |named: shapes_json::NamedPolicy| {
        let policy = named.policy.checked().map_err(|error| format!("policy {}: {error}", named.name))?;
        let name = named.name.parse().map_err(|error| format!("policy {}: {error}", named.name))?;
        Ok(WrittenPolicy { name, policy })
    };
    found.into_iter().map(checked).collect()
}

/// Stores one policy.
pub async fn put_policy(
    written: &WrittenPolicy,
    now: bool,
    context: &Context<'_>,
) -> Result<(), CommandError> {
    let policy = shapes_json::NamedPolicy::of(&written.name, &written.policy).into();
    let request = proto::PutPolicyRequest { policy: Some(policy), now };
    // A second transmission stores the same.
    let send = |channel, _| {
        let request = request.clone();
        async move { AuthClient::new(channel).put_policy(request).await }
    };
    context.change_repeatably(send).await?;
    Ok(())
}

/// All policies that are stored, and whether they count.
pub async fn stored_policies(context: &Context<'_>) -> Result<shapes_json::PolicyList, CommandError> {
    let send = |channel, request| async move { AuthClient::new(channel).list_policies(request).await };
    Ok(context.read(proto::PolicyListRequest {}, send).await?.into())
}

async fn put(args: PutArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    for written in args.source.policies(args.name.as_deref().unwrap_or_default())? {
        put_policy(&written, args.now, context).await?;
        let name = written.name.as_str();
        context
            .output
            .tell(|| json!({ "policy": name, "stored": true }), |_| format!("policy {name} is stored"))?;
    }
    Ok(Exit::Done)
}

async fn remove(args: RmArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::RemovePolicyRequest { name: args.name.clone(), now: args.now };
    let send = |channel, request| async move { AuthClient::new(channel).remove_policy(request).await };
    context.change(request, send).await?;
    let name = &args.name;
    context
        .output
        .tell(|| json!({ "policy": name, "removed": true }), |_| format!("policy {name} is removed"))?;
    Ok(Exit::Done)
}

async fn list(args: LsArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let mut stored = stored_policies(context).await?;
    if let Some(name) = &args.name {
        stored.policies.retain(|policy| policy.name == *name);
        if stored.policies.is_empty() {
            let hint = "`tenure policy ls` lists all of them";
            return Err(CommandError::with_hint(Exit::NotFound, format!("there is no policy {name}"), hint));
        }
    }
    if context.output.is_json() {
        for policy in &stored.policies {
            context.output.line(&shapes::value(policy).to_string())?;
        }
        return Ok(Exit::Done);
    }
    if !stored.enforced {
        context.output.talk("the policies do not count yet; `tenure auth enforce` changes that");
    }
    if stored.policies.is_empty() {
        context.output.talk("there are no policies; `tenure policy put` stores one");
    }
    // A pipe gets what `put -f` reads.
    let text = match context.output.form() {
        crate::render::Form::Plain => {
            let texts: Vec<String> = stored.policies.iter().filter_map(|named| as_text(named).ok()).collect();
            texts.join("\n")
        }
        form => render::policies(&stored.policies, form),
    };
    context.output.line(&text)?;
    Ok(Exit::Done)
}

fn as_text(named: &shapes_json::NamedPolicy) -> Result<String, String> {
    let policy = named.policy.checked().map_err(|error| error.to_string())?;
    let name = named.name.parse().map_err(|error: tenure_core::InvalidName| error.to_string())?;
    Ok(policy_text(&WrittenPolicy { name, policy }))
}

async fn test(args: TestArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let wrong = |why: String| CommandError::said(Exit::Usage, why);
    let identity = match args.identity.as_str() {
        "anyone" => Identity::Anyone,
        name => Identity::named(name.parse().map_err(|error| wrong(format!("--as {name}: {error}")))?),
    };
    let verb: Verb = args.verb.parse().map_err(|error| wrong(format!("{}: {error}", args.verb)))?;
    let proposed = args.source.policies("proposed")?;
    let stored = match args.alone {
        true => Vec::new(),
        false => {
            let list = stored_policies(context).await?;
            let text = list.policies.into_iter().map(|named| {
                let policy = named.policy.checked().map_err(|error| wrong(error.to_string()))?;
                let name = named.name.parse().map_err(|error| wrong(format!("{}: {error}", named.name)))?;
                Ok(WrittenPolicy { name, policy })
            });
            text.collect::<Result<Vec<_>, CommandError>>()?
        }
    };
    let (before, after) = judged(&stored, &proposed, &identity, verb, &args.name);
    let (who, on) = (identity.to_string(), args.name.as_str());
    context.output.tell(
        || {
            json!({
                "identity": who, "verb": verb.as_str(), "on": on,
                "allowed": after.is_some(), "policy": after,
                "allowed_now": before.is_some(), "policy_now": before,
            })
        },
        |form| render::tested(&who, verb.as_str(), on, before.as_deref(), after.as_deref(), form),
    )?;
    Ok(if after.is_some() { Exit::Done } else { Exit::Denied })
}

/// Which policy allows this: of those that are stored, and of those with the proposed ones put over them.
fn judged(
    stored: &[WrittenPolicy],
    proposed: &[WrittenPolicy],
    identity: &Identity,
    verb: Verb,
    on: &str,
) -> (Option<String>, Option<String>) {
    let allows = |written: &&WrittenPolicy| {
        let policy = &written.policy;
        policy.may.contains(verb)
            && policy.who.iter().any(|who| who.includes(identity))
            && policy.on.iter().any(|prefix| prefix.covers(on.as_bytes()))
    };
    let name = |written: &WrittenPolicy| written.name.to_string();
    let before = stored.iter().find(allows).map(name);
    let kept = stored.iter().filter(|old| !proposed.iter().any(|new| new.name == old.name));
    let after = proposed.iter().chain(kept).find(allows).map(name);
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "policy a\nwho cred/a\non pay\nmay hold\n\npolicy b\nwho cred/b\non *\nmay read\n";

    #[test]
    fn words_and_json_say_the_same() {
        let read = read_text(TEXT).unwrap();
        let lines: Vec<String> = read
            .iter()
            .map(|written| shapes_json::NamedPolicy::of(&written.name, &written.policy))
            .map(|named| serde_json::to_string(&named).unwrap())
            .collect();
        assert_eq!(read_text(&lines.join("\n")).unwrap(), read);
        assert_eq!(read_text(&format!("[{}]", lines.join(","))).unwrap(), read);
        for wrong in ["{", "[1]", "{\"name\":\"a\"}", "{\"name\":\"a\",\"who\":[\"x\"],\"on\":[],\"may\":[]}"]
        {
            assert!(read_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_proposed_policy_replaces_the_stored_one_of_its_name() {
        let stored = read_text(TEXT).unwrap();
        let proposed = read_text("policy a\nwho cred/a\non shop\nmay hold\n").unwrap();
        let a = Identity::named("cred/a".parse().unwrap());
        let judge = |on: &str| judged(&stored, &proposed, &a, Verb::Hold, on);
        assert_eq!(judge("pay/x"), (Some("a".into()), None));
        assert_eq!(judge("shop"), (None, Some("a".into())));
        assert_eq!(judge("shopping"), (None, None));
    }
}
