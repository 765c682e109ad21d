//! `tenure.v1.Sessions`.

use tenure_core::state::State;
use tenure_core::{SessionId, SessionNumber};
use tenure_wire::proto::{self, sessions_server::Sessions};
use tenure_wire::{ApiError, grpc, words};
use tonic::{Request, async_trait};

use super::{GrpcResult, Services, answer};
use crate::calls::page;

#[async_trait]
impl Sessions for Services {
    async fn open(
        &self,
        request: Request<proto::SessionOpenRequest>,
    ) -> GrpcResult<proto::SessionOpenResponse> {
        let api = &self.0;
        answer(
            async {
                let opened = api.open(grpc::open(request.into_inner(), api.node.draw_secret())?).await?;
                Ok(proto::SessionOpenResponse {
                    session: opened.session.to_string(),
                    session_number: opened.session.number.get(),
                    holder: opened.holder.to_string(),
                    ttl_ms: words::millis(opened.ttl),
                    number: opened.number,
                })
            }
            .await,
        )
    }

    async fn renew(
        &self,
        request: Request<proto::SessionRenewRequest>,
    ) -> GrpcResult<proto::SessionRenewResponse> {
        answer(
            async {
                let renewals = request
                    .into_inner()
                    .renewals
                    .iter()
                    .map(|renewal| Ok((renewal.session.parse()?, renewal.number)))
                    .collect::<Result<Vec<(SessionId, u64)>, ApiError>>()?;
                let answers = self.0.renew(renewals.clone()).await?;
                let mut response = proto::SessionRenewResponse::default();
                for ((id, _), answer) in renewals.iter().zip(&answers) {
                    match grpc::renewed(id.number, answer) {
                        Some(renewed) => response.renewed.push(renewed),
                        None => response.unknown.push(id.to_string()),
                    }
                }
                Ok(response)
            }
            .await,
        )
    }

    async fn close(
        &self,
        request: Request<proto::SessionCloseRequest>,
    ) -> GrpcResult<proto::SessionCloseResponse> {
        answer(
            async {
                let released = self.0.close(grpc::close(request.into_inner())?).await?;
                Ok(proto::SessionCloseResponse { released })
            }
            .await,
        )
    }

    async fn list(
        &self,
        request: Request<proto::SessionListRequest>,
    ) -> GrpcResult<proto::SessionListResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let after = asked.after.map(SessionNumber::new);
                let (sessions, next) = self.0.sessions(after, page(asked.limit.map(Into::into))?).await?;
                Ok(proto::SessionListResponse {
                    sessions: sessions.iter().map(grpc::session_summary).collect(),
                    next: next.map(SessionNumber::get),
                })
            }
            .await,
        )
    }

    async fn get(&self, request: Request<proto::SessionGetRequest>) -> GrpcResult<proto::SessionGetResponse> {
        answer(
            async {
                let id: SessionId = request.into_inner().session.parse()?;
                let (view, leases, state) = self.0.own_session(&id).await?;
                Ok(proto::SessionGetResponse {
                    summary: Some(grpc::session_summary(&view)),
                    leases: leases.iter().map(|(_, holding)| grpc::holding(holding)).collect(),
                    resources: leases.iter().map(|(resource, _)| resource.to_string()).collect(),
                    waits: waits(&state, id.number),
                    last_lease_revision: state
                        .pulses
                        .get(id.number)
                        .map_or(0, |pulse| pulse.last_lease_revision.get()),
                    number: state.pulses.get(id.number).map_or(0, |pulse| pulse.number),
                })
            }
            .await,
        )
    }

    async fn seen(
        &self,
        request: Request<proto::SessionSeenRequest>,
    ) -> GrpcResult<proto::SessionSeenResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::seen(&request.into_inner())?).await?;
                Ok(proto::SessionSeenResponse {})
            }
            .await,
        )
    }

    async fn report_pause(
        &self,
        request: Request<proto::ReportPauseRequest>,
    ) -> GrpcResult<proto::ReportPauseResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::report_pause(&request.into_inner())?).await?;
                Ok(proto::ReportPauseResponse {})
            }
            .await,
        )
    }
}

/// The acquires of a session that wait in the queue.
fn waits(state: &State, session: SessionNumber) -> Vec<proto::SessionWait> {
    let Some(more) = state.sessions.get(session).and_then(|session| session.more.as_ref()) else {
        return Vec::new();
    };
    let waiters = more.waiters.iter().filter_map(|number| state.waiters.get(*number));
    waiters
        .map(|waiter| proto::SessionWait {
            number: waiter.number,
            resources: waiter
                .resources
                .iter()
                .filter_map(|number| state.resources.get(*number))
                .map(|resource| resource.name.to_string())
                .collect(),
        })
        .collect()
}
