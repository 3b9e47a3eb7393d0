//! OAuth tokens for the mechanism OAUTHBEARER.
//!
//! librdkafka asks for a token by an event of the client. The driver's thread serves the events of the
//! consumer, and must not run user code. Some clients are never polled, so their events are not served
//! at all. The tokens are therefore obtained on a thread of their own and shared by all clients, which
//! take the latest one.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, millis};
use campanile_driver::private::{chain, now, panic_text};
use rdkafka::client::OAuthToken as ClientToken;

use crate::log::LogLimit;

/// How long a thread that may block waits for a token.
pub(crate) const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A token by which clients authenticate to the brokers. Returned by the function that is passed to
/// [`ConsumerConfig::with_oauth_token`](crate::ConsumerConfig::with_oauth_token).
///
/// `Debug` does not print the token.
#[derive(Clone)]
pub struct OauthToken {
    token: String,
    expires_at: SystemTime,
}

impl OauthToken {
    /// Creates a token that expires at this time.
    pub fn new(token: impl Into<String>, expires_at: SystemTime) -> Self {
        Self { token: token.into(), expires_at }
    }

    /// Converts into the token that librdkafka takes.
    pub(crate) fn into_client_token(self) -> ClientToken {
        // librdkafka keeps the name, but sends it nowhere: the brokers take it from the token.
        let principal_name = String::new();
        let lifetime_ms = millis::of(self.expires_at).max(0);
        ClientToken { token: self.token, principal_name, lifetime_ms }
    }
}

impl fmt::Debug for OauthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OauthToken").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

type ObtainToken = dyn Fn() -> Result<OauthToken, BoxError> + Send + Sync;

/// The latest token, which all clients of a configuration share.
pub(crate) struct OauthTokens {
    obtain: Box<ObtainToken>,
    state: Mutex<TokenState>,
    /// Notified when a thread has tried to obtain a token.
    tried: Condvar,
    log_limit: LogLimit,
}

#[derive(Default)]
struct TokenState {
    latest: Option<Obtained>,
    /// Whether a thread obtains a token.
    obtaining: bool,
}

struct Obtained {
    token: OauthToken,
    /// Half of the token's lifetime. From then on, the next token is obtained. librdkafka asks for the
    /// next one later, after four fifths.
    renew_at: SystemTime,
}

impl TokenState {
    fn valid(&self) -> Option<&OauthToken> {
        let latest = self.latest.as_ref().map(|latest| &latest.token);
        latest.filter(|token| token.expires_at > now())
    }
}

impl OauthTokens {
    pub(crate) fn new(
        obtain: impl Fn() -> Result<OauthToken, BoxError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            obtain: Box::new(obtain),
            state: Mutex::default(),
            tried: Condvar::new(),
            log_limit: LogLimit::default(),
        }
    }

    /// Finds the latest token that is valid. Without one, waits at most `timeout` until another
    /// thread has tried to obtain one.
    pub(crate) fn latest(self: &Arc<Self>, timeout: Duration) -> Option<OauthToken> {
        let mut state = self.state();
        let is_due = state.latest.as_ref().is_none_or(|latest| latest.renew_at <= now());
        if is_due && !state.obtaining {
            let tokens = self.clone();
            let thread = std::thread::Builder::new().name("campanile-oauth".into());
            match thread.spawn(move || tokens.obtain()) {
                Ok(_) => state.obtaining = true,
                Err(error) => {
                    tracing::error!(%error, "failed to start a thread to obtain an OAuth token");
                }
            }
        }
        let is_awaited = |state: &mut TokenState| state.obtaining && state.valid().is_none();
        let waited = self.tried.wait_timeout_while(state, timeout, is_awaited);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.valid().cloned()
    }

    fn obtain(&self) {
        let start = now();
        let obtained = catch_unwind(AssertUnwindSafe(|| (self.obtain)()));
        let obtained = match obtained {
            Ok(Ok(token)) if token.expires_at > now() => Ok(token),
            Ok(Ok(_)) => Err("the token has expired already".into()),
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(format!("the function panicked: {}", panic_text(panic)).into()),
        };
        let mut state = self.state();
        state.obtaining = false;
        match obtained {
            Ok(token) => {
                let lifetime = token.expires_at.duration_since(start).unwrap_or_default();
                state.latest = Some(Obtained { token, renew_at: start + lifetime / 2 });
            }
            Err(error) => {
                // Each client asks again, the consumer's several times a second while it starts.
                let text = chain(&*error);
                if let Some(suppressed) = self.log_limit.allow(&text) {
                    tracing::error!(
                        error = text,
                        suppressed,
                        "failed to obtain an OAuth token; retrying"
                    );
                }
            }
        }
        self.tried.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers librdkafka's request for a token. After an error, librdkafka asks again in 10 s.
pub(crate) fn answer(
    tokens: Option<&Arc<OauthTokens>>,
    timeout: Duration,
) -> Result<ClientToken, Box<dyn Error>> {
    let tokens = tokens.ok_or(
        "`sasl.mechanisms` is `OAUTHBEARER`, but nothing obtains a token: see \
         `ConsumerConfig::with_oauth_token`",
    )?;
    let token = tokens.latest(timeout).ok_or("no OAuth token was obtained yet")?;
    Ok(token.into_client_token())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn token(text: &str) -> OauthToken {
        OauthToken::new(text, now() + HOUR)
    }

    fn latest(tokens: &Arc<OauthTokens>, timeout: Duration) -> Option<String> {
        tokens.latest(timeout).map(|token| token.token)
    }

    #[test]
    fn valid_token_is_obtained_once_and_shared() {
        let count = AtomicUsize::new(0);
        let tokens = Arc::new(OauthTokens::new(move || {
            Ok(token(&count.fetch_add(1, Ordering::SeqCst).to_string()))
        }));
        for _ in 0..3 {
            assert_eq!(latest(&tokens, HOUR).as_deref(), Some("0"));
        }
        let answered = answer(Some(&tokens), Duration::ZERO).unwrap();
        assert_eq!(answered.token, "0");
        let remaining = Duration::from_millis(answered.lifetime_ms as u64)
            .saturating_sub(now().duration_since(SystemTime::UNIX_EPOCH).unwrap());
        assert!(remaining > HOUR / 2 && remaining <= HOUR, "{remaining:?}");
    }

    #[test]
    fn blocked_function_holds_up_nobody_who_does_not_wait() {
        let (sender, receiver) = mpsc::channel();
        let receiver = Mutex::new(receiver);
        let tokens = Arc::new(OauthTokens::new(move || Ok(receiver.lock().unwrap().recv()?)));
        assert_eq!(latest(&tokens, Duration::ZERO), None);
        assert!(answer(Some(&tokens), Duration::ZERO).is_err());
        sender.send(token("a")).unwrap();
        assert_eq!(latest(&tokens, HOUR).as_deref(), Some("a"));
    }

    #[test]
    fn token_is_used_while_the_next_one_is_obtained() {
        let (sender, receiver) = mpsc::channel();
        let receiver = Mutex::new(receiver);
        let tokens = Arc::new(OauthTokens::new(move || Ok(receiver.lock().unwrap().recv()?)));
        sender.send(token("a")).unwrap();
        assert_eq!(latest(&tokens, HOUR).as_deref(), Some("a"));
        tokens.state().latest.as_mut().unwrap().renew_at = now();
        // The next token is not obtained yet, and nobody waits for it.
        assert_eq!(latest(&tokens, HOUR).as_deref(), Some("a"));
        sender.send(token("b")).unwrap();
        let state = tokens.state();
        let waited = tokens.tried.wait_timeout_while(state, HOUR, |state| state.obtaining).unwrap();
        drop(waited);
        assert_eq!(latest(&tokens, Duration::ZERO).as_deref(), Some("b"));
    }

    #[test]
    fn function_is_called_again_after_errors_panics_and_expired_tokens() {
        let count = AtomicUsize::new(0);
        let tokens =
            Arc::new(OauthTokens::new(move || match count.fetch_add(1, Ordering::SeqCst) {
                0 => Err("unavailable".into()),
                1 => panic!("a panic of the function"),
                2 => Ok(OauthToken::new("old", now())),
                _ => Ok(token("new")),
            }));
        for _ in 0..3 {
            assert_eq!(latest(&tokens, HOUR), None);
        }
        assert_eq!(latest(&tokens, HOUR).as_deref(), Some("new"));
    }

    #[test]
    fn debug_shows_no_token() {
        let text = format!("{:?}", token("s3cret"));
        assert!(!text.contains("s3cret"), "{text}");
    }
}
