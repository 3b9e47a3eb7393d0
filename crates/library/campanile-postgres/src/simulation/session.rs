//! A client's session, and its requests.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes};
use campanile_test::simulation::Requests;
use tokio::io::AsyncReadExt;

use super::function::{Function, FunctionCall};

/// What the server knows about a connection.
#[derive(Default)]
pub(super) struct Session {
    /// `None` until it has started.
    pub(super) id: Option<u32>,
    pub(super) statements: BTreeMap<Bytes, Function>,
    pub(super) lock_timeout: Option<Duration>,
    /// Whether the current call has waited for a locked row for longer than that.
    pub(super) has_timed_out: bool,
}

/// What is answered at once: the messages of a client up to the one that ends them.
pub(super) enum Request {
    Startup,
    Messages(Vec<Message>),
}

pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) body: Bytes,
}

impl Request {
    /// Reads a request. `None` if the client has closed the connection.
    pub(super) async fn read(
        session: &Session,
        requests: &mut Requests,
    ) -> io::Result<Option<Self>> {
        if session.id.is_none() {
            let length = requests.read_i32().await?;
            requests.read_exact(&mut vec![0; length as usize - 4]).await?;
            return Ok(Some(Self::Startup));
        }
        let mut messages = Vec::new();
        loop {
            let kind = requests.read_u8().await?;
            let mut body = vec![0; requests.read_i32().await? as usize - 4];
            requests.read_exact(&mut body).await?;
            messages.push(Message { kind, body: body.into() });
            match kind {
                b'X' => return Ok(None),
                b'Q' | b'S' => return Ok(Some(Self::Messages(messages))),
                _ => {}
            }
        }
    }
}

impl Session {
    /// The call of a request, if it has one.
    pub(super) fn call(&self, request: &Request) -> Option<FunctionCall> {
        let Request::Messages(messages) = request else { return None };
        let bind = messages.iter().find(|message| message.kind == b'B')?;
        let mut body = bind.body.clone();
        let _portal = name(&mut body);
        let function = self.statements[&name(&mut body)];
        for _ in 0..body.get_i16() {
            assert_eq!(body.get_i16(), 1, "a parameter in binary format");
        }
        let count = body.get_i16();
        let argument = |_| {
            let length = usize::try_from(body.get_i32()).expect("not null");
            body.split_to(length)
        };
        Some(FunctionCall::new(function, (0..count).map(argument).collect()))
    }
}

/// Reads a text that ends with a zero.
pub(super) fn name(body: &mut Bytes) -> Bytes {
    let length = body.iter().position(|byte| *byte == 0).expect("the end of a text");
    let name = body.split_to(length);
    body.advance(1);
    name
}
