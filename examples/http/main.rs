//! A `POST` that is safe to repeat: `cargo run --example http`.
//!
//! The route follows the IETF draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header): a repeated request gets the first response. Errors
//! are 400 without the header, 409 while the first request is in progress, and 422 for another
//! payload with the same key.
//!
//! `client` tries all of these cases. To try them by hand, `--serve [--port N]` serves until Ctrl-C
//! and prints a curl command. The entries are in a `MemoryStore`, or in Redis with `--redis URL`.
//!
//! The modules to copy are `payments` and `answer`. Their `Cargo.toml` needs axum, campanile,
//! serde, serde_json, tokio, and tower with the features `filter`, `timeout` and `util`.

mod answer;
mod client;
mod payments;
mod terminal;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use campanile::LockKeeper;
use campanile::prelude::{BoxError, MemoryStore, RedisStore};
use lexopt::{Arg, ValueExt};
use tokio::net::TcpListener;

use crate::terminal::Terminal;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let Args { redis, serve, port } = Args::from_env()?;
    let keeper = match redis {
        Some(url) => LockKeeper::new(RedisStore::connect(url.as_str()).await?)?,
        None => LockKeeper::new(MemoryStore::new())?,
    };
    // Slow enough to send the same request from another shell meanwhile.
    let payment_time = if serve { Duration::from_secs(2) } else { Duration::ZERO };
    let terminal = Terminal::new(payment_time);
    let app = payments::payments(keeper, terminal.clone())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    let server = axum::serve(listener, app);
    if serve {
        print_curl(address);
        Ok(server.with_graceful_shutdown(ctrl_c()).await?)
    } else {
        tokio::spawn(server.into_future());
        client::run_cases(address, &terminal).await
    }
}

fn print_curl(address: SocketAddr) {
    println!("Serving until Ctrl-C. Send this twice, also from two shells at the same time:");
    println!("curl -i http://{address}/payments -H 'idempotency-key: \"p-1\"' \\");
    println!("  -H 'content-type: application/json' -d '{{\"cents\":100}}'");
}

async fn ctrl_c() {
    tokio::signal::ctrl_c().await.expect("the signal handler can be installed");
}

struct Args {
    redis: Option<String>,
    serve: bool,
    /// 0: any free port.
    port: u16,
}

impl Args {
    fn from_env() -> Result<Self, BoxError> {
        let redis = std::env::var("CAMPANILE_REDIS").ok();
        let mut args = Self { redis, serve: false, port: 0 };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("redis") => args.redis = Some(parser.value()?.string()?),
                Arg::Long("serve") => args.serve = true,
                Arg::Long("port") => args.port = parser.value()?.parse()?,
                arg => {
                    let usage = "usage: [--redis URL] [--serve] [--port N]";
                    return Err(format!("{}\n{usage}", arg.unexpected()).into());
                }
            }
        }
        Ok(args)
    }
}
