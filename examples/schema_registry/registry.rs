//! A schema registry in this process, which answers its first request with 503.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use campanile::BoxError;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The registry, which runs until the end of the program.
pub(crate) struct Registry {
    url: String,
    state: Arc<RegistryState>,
}

struct RegistryState {
    schemas: HashMap<u32, &'static str>,
    requests: AtomicU32,
}

impl Registry {
    /// Starts a registry with these schemas, by their ids.
    ///
    /// # Errors
    /// Fails if no port is available.
    pub(crate) async fn start(
        schemas: impl IntoIterator<Item = (u32, &'static str)>,
    ) -> Result<Self, BoxError> {
        let schemas = schemas.into_iter().collect();
        let state = Arc::new(RegistryState { schemas, requests: AtomicU32::new(0) });
        let routes =
            Router::new().route("/schemas/ids/{id}", get(schema)).with_state(state.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(axum::serve(listener, routes).into_future());
        Ok(Self { url, state })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u32 {
        self.state.requests.load(Ordering::Relaxed)
    }
}

async fn schema(
    State(state): State<Arc<RegistryState>>,
    Path(id): Path<u32>,
) -> (StatusCode, Json<Value>) {
    if state.requests.fetch_add(1, Ordering::Relaxed) == 0 {
        let body = json!({ "error_code": 50003, "message": "starting" });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body));
    }
    match state.schemas.get(&id) {
        Some(schema) => (StatusCode::OK, Json(json!({ "schema": schema }))),
        None => {
            let body = json!({ "error_code": 40403, "message": "Schema not found" });
            (StatusCode::NOT_FOUND, Json(body))
        }
    }
}
