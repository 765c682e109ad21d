//! `tenure auth`: credentials, who one is, and what one may do. The secret of a credential is drawn here and leaves this
//! process in its file alone: the cluster is sent a hash.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::auth_client::AuthClient;
use tenure_client::{Bearer, CredentialFile};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{CredentialId, IdentityName, WallTime};
use tenure_tls::Root;
use tenure_wire::json as shapes_json;
use tenure_wire::words::{calendar, hex};

use super::policy::{PolicyArgs, put_policy, stored_policies};
use crate::args::Length;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::auth as render;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure auth new pay-worker --on pay/ --may hold,read > pay.cred
  TENURE_CREDENTIAL=pay.cred tenure auth whoami
  tenure auth explain hold pay/settlement
  tenure auth explain --as cred/pay-worker write pay/cursor
  tenure auth ls
  tenure auth revoke cred/pay-worker
  tenure auth enforce                        from now on the policies count

The first administrator is whoever has the cluster's root file: `tenure --root root.pem auth new …`.";

/// Issue and revoke credentials; see who one is and what one may do
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a credential, and write its file to stdout
    New(NewArgs),
    /// List the credentials that the cluster knows, without their secrets
    Ls,
    /// End a credential, or all of one identity; leases that it covered get notice
    Revoke(RevokeArgs),
    /// Say whether somebody may do something, and by which policy
    Explain(ExplainArgs),
    /// Say who the cluster takes you for, and what you may do
    Whoami,
    /// Have the policies count from now on, for everybody
    Enforce(EnforceArgs),
}

const NEW_HELP: &str = "\
Make a credential, and write its file to stdout.

The file has everything that a client needs: the secret, the endpoints, and the certificate of the cluster's root. Give it \
to one program, with mode 600; TENURE_CREDENTIAL or --credential names it. The secret is in no other place: who loses the \
file needs a new one.

With --on and --may a policy of the same name is stored first, so that the credential is good for something. A second \
credential of the same name needs neither: it is the same identity, so that one can be replaced while its leases live on.";

#[derive(Debug, clap::Args)]
#[command(long_about = NEW_HELP)]
struct NewArgs {
    /// Whose it is: it makes its bearer `cred/NAME`
    name: String,
    /// What it is about: prefixes of resources and registers, such as pay/; `*` is everything
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', requires = "may")]
    on: Vec<String>,
    /// What it may do there: read, hold, write, manage, observe, operate, grant
    #[arg(long, value_name = "VERB", value_delimiter = ',', requires = "on")]
    may: Vec<String>,
    /// Bind the names of its holders to its own: NAME, and NAME/…
    #[arg(long, value_name = "RULE", value_parser = ["self", "any"], requires = "on")]
    holder: Option<String>,
    /// How much of it, such as leases=100 or ttl_max=60s
    #[arg(long, value_name = "NAME=VALUE", requires = "on")]
    limit: Vec<String>,
    /// When it expires. For a day after that it keeps what it holds, and takes nothing new
    #[arg(long, value_name = "AFTER")]
    expires: Option<Length>,
}

#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// A credential's id, or an identity: `cred/NAME` or just NAME
    which: String,
    /// End its leases at once, where only fences protect, instead of by notice
    #[arg(long)]
    now: bool,
}

#[derive(Debug, clap::Args)]
struct ExplainArgs {
    /// Whom it is about: an identity such as cred/pay-worker, or `anyone`; yourself if left out
    #[arg(long = "as", value_name = "ID")]
    identity: Option<String>,
    /// read, hold, write, manage, observe, operate or grant
    verb: String,
    /// A resource, a register, or `*` for the whole cluster
    name: String,
}

#[derive(Debug, clap::Args)]
struct EnforceArgs {
    /// Nobody is judged any more: everybody may do everything
    #[arg(long)]
    off: bool,
}

/// Does what was asked for.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::New(args) => new(args, context).await,
        Command::Ls => list(context).await,
        Command::Revoke(args) => revoke(args, context).await,
        Command::Explain(args) => explain(args, context).await,
        Command::Whoami => whoami(context).await,
        Command::Enforce(args) => enforce(args, context).await,
    }
}

async fn new(args: NewArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let identity: IdentityName = format!("cred/{}", args.name.trim_start_matches("cred/"))
        .parse()
        .map_err(|error| usage(format!("{} cannot be a credential's name: {error}", args.name)))?;
    if !args.on.is_empty() {
        let policy = PolicyArgs {
            who: vec![identity.to_string()],
            on: args.on.clone(),
            may: args.may.clone(),
            holder: args.holder.clone(),
            limit: args.limit.clone(),
        };
        let name = policy_name(identity.within_source());
        let written = policy.policy(&name)?;
        let stored = stored_policies(context).await?;
        match stored.policies.iter().find(|other| other.name == name) {
            Some(same) if same.policy == (&written.policy).into() => {}
            Some(_) => {
                return Err(CommandError::with_hint(
                    Exit::Usage,
                    format!("there is a policy {name} already, and it says something else; nothing was done"),
                    format!(
                        "look at it with `tenure policy ls {name}`, change it with `tenure policy put {name} …`, \
                             and leave --on and --may out here"
                    ),
                ));
            }
            None => put_policy(&written, false, context).await?,
        }
        if !stored.enforced {
            context.output.talk("tenure: the policies do not count yet; `tenure auth enforce` changes that");
        }
    }
    let file = issue(&identity, args.expires.map(Length::get), context).await?;
    write_file(&file, context)?;
    let until =
        file.expires.as_deref().map_or_else(|| "does not expire".into(), |at| format!("expires {at}"));
    context.output.talk(&format!("tenure: credential {} of {identity} {until}", file.bearer.id()));
    Ok(Exit::Done)
}

/// A policy's name has fewer characters than an identity's.
fn policy_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

/// Draws a credential and makes its hash known.
async fn issue(
    identity: &IdentityName,
    expires_in: Option<Duration>,
    context: &Context<'_>,
) -> Result<CredentialFile, CommandError> {
    let (mut id, mut secret) = ([0; 8], [0; 32]);
    let drawn = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret));
    drawn.map_err(|error| CommandError::said(Exit::Other, format!("no random bits: {error}")))?;
    let bearer = Bearer::new(CredentialId::new(id), secret);
    let expires = expires_in.map(|length| {
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        SystemClock.wall().as_unix_millis().saturating_add(length)
    });
    let hash = ring::digest::digest(&ring::digest::SHA256, bearer.secret());
    let request = proto::PutCredentialRequest {
        id: bearer.id().to_string(),
        name: identity.to_string(),
        hash: hex(hash.as_ref()),
        expires_unix_ms: expires,
    };
    // A second transmission makes the same credential known.
    let send = |channel, _| {
        let request = request.clone();
        async move { AuthClient::new(channel).put_credential(request).await }
    };
    context.change_repeatably(send).await?;
    let roots = roots(context)?;
    Ok(CredentialFile {
        name: identity.within_source().to_owned(),
        endpoints: context.endpoints.as_slice().iter().map(ToString::to_string).collect(),
        expires: expires.map(|at| calendar(WallTime::from_unix_millis(at))),
        bearer,
        roots,
    })
}

/// The certificates by which the cluster is known: those of the caller's own credential, or of the root that it has.
fn roots(context: &Context<'_>) -> Result<Vec<Vec<u8>>, CommandError> {
    if let Some(own) = context.endpoints.credential().filter(|own| !own.roots().is_empty()) {
        return Ok(own.roots().to_vec());
    }
    let Some(path) = &context.tls.root else { return Ok(Vec::new()) };
    let root = Root::read(path).map_err(|error| usage(error.to_string()))?;
    Ok(root.certificates().iter().map(|certificate| certificate.to_vec()).collect())
}

/// Writes the file to stdout. One that the shell has made for it gets mode 600 first: a credential that others can read
/// is refused by every client.
fn write_file(file: &CredentialFile, context: &Context<'_>) -> Result<(), CommandError> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        context.output.talk("tenure: this is a secret; to keep it in a file, add `> NAME.cred`");
    }
    let is_file = rustix::fs::fstat(stdout.as_fd())
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
    if is_file {
        let own = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::fchmod(stdout.as_fd(), own).map_err(|error| CommandError::Output(error.into()))?;
    }
    if context.output.is_json() {
        let text = file.reveal();
        let shown = json!({
            "name": file.name, "id": file.bearer.id().to_string(), "expires": file.expires, "file": *text,
        });
        context.output.line(&shown.to_string())?;
        return Ok(());
    }
    let mut out = stdout.lock();
    out.write_all(file.reveal().as_bytes())?;
    out.flush()?;
    Ok(())
}

/// All credentials, page by page.
async fn credentials(context: &Context<'_>) -> Result<Vec<shapes_json::Credential>, CommandError> {
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let request = proto::CredentialListRequest { after, limit: Some(1_000) };
        let send = |channel, request| async move { AuthClient::new(channel).list_credentials(request).await };
        let page: shapes_json::Credentials = context.read(request, send).await?.into();
        all.extend(page.credentials);
        match page.next {
            Some(next) => after = next,
            None => return Ok(all),
        }
    }
}

async fn list(context: &Context<'_>) -> Result<Exit, CommandError> {
    let all = credentials(context).await?;
    if context.output.is_json() {
        for credential in &all {
            context.output.line(&shapes::value(credential).to_string())?;
        }
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        context.output.talk("there are no credentials; `tenure auth new` makes one");
    }
    context.output.line(&render::credentials(&all, context.output.form()))?;
    Ok(Exit::Done)
}

async fn revoke(args: RevokeArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let ids = match args.which.parse::<CredentialId>() {
        Ok(id) => vec![id.to_string()],
        Err(_) => {
            let name = format!("cred/{}", args.which.trim_start_matches("cred/"));
            let all = credentials(context).await?;
            let live = all.into_iter().filter(|one| one.name == name && !one.revoked);
            live.map(|one| one.id).collect()
        }
    };
    if ids.is_empty() {
        return Err(CommandError::with_hint(
            Exit::NotFound,
            format!("there is no credential of {}", args.which),
            "`tenure auth ls` lists all of them",
        ));
    }
    for id in ids {
        let request = proto::RevokeCredentialRequest { id: id.clone(), now: args.now };
        let send = |channel, _| {
            let request = request.clone();
            async move { AuthClient::new(channel).revoke_credential(request).await }
        };
        context.change_repeatably(send).await?;
        context
            .output
            .tell(|| json!({ "id": id, "revoked": true }), |_| format!("credential {id} is revoked"))?;
    }
    Ok(Exit::Done)
}

async fn explain(args: ExplainArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request =
        proto::ExplainRequest { r#as: args.identity.unwrap_or_default(), verb: args.verb, on: args.name };
    let send = |channel, request| async move { AuthClient::new(channel).explain(request).await };
    let explained: shapes_json::Explained = context.read(request, send).await?.into();
    context.output.tell(|| shapes::value(&explained), |form| render::explained(&explained, form))?;
    let refused = explained.enforced && !explained.allowed;
    Ok(if refused { Exit::Denied } else { Exit::Done })
}

async fn whoami(context: &Context<'_>) -> Result<Exit, CommandError> {
    let send = |channel, request| async move { AuthClient::new(channel).who_am_i(request).await };
    let who: shapes_json::WhoAmI = context.read(proto::WhoAmIRequest {}, send).await?.into();
    context.output.tell(|| shapes::value(&who), |form| render::who_am_i(&who, form))?;
    Ok(Exit::Done)
}

async fn enforce(args: EnforceArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let enforced = !args.off;
    let send = |channel, _| async move {
        AuthClient::new(channel).enforce(proto::EnforceRequest { enforced }).await
    };
    context.change_repeatably(send).await?;
    context.output.tell(
        || json!({ "enforced": enforced }),
        |_| match enforced {
            true => "the policies count from now on: what none allows is denied".to_owned(),
            false => "the policies do not count any more: everybody may do everything".to_owned(),
        },
    )?;
    Ok(Exit::Done)
}

fn usage(message: String) -> CommandError {
    CommandError::said(Exit::Usage, message)
}
