//! Compiles every order of layers that can compile, and checks that no such order is missing.
//!
//! The letters, outermost first: R retry, T timeout, C concurrency limit, L rate limit, B buffer, S
//! load shed, I idempotency.

use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore, WaitForLock};
use tower::buffer::BufferLayer;
use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
use tower::load_shed::LoadShedLayer;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::{Service, ServiceBuilder};

use crate::harness::TestLayer;

/// Takes a service with the bounds of a driver.
fn serve<S>(_: S)
where
    S: Service<Request<()>> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
{
}

async fn handler(_: Request<()>) -> Result<(), BoxError> {
    Ok(())
}

#[expect(non_snake_case, reason = "the letters of the orders")]
mod layers {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    pub(super) fn R() -> RetryLayer<WaitForLock> {
        RetryLayer::new(WaitForLock::new(SECOND))
    }
    pub(super) fn T() -> TimeoutLayer {
        TimeoutLayer::new(SECOND)
    }
    pub(super) fn C() -> ConcurrencyLimitLayer {
        ConcurrencyLimitLayer::new(1)
    }
    pub(super) fn L() -> RateLimitLayer {
        RateLimitLayer::new(1, SECOND)
    }
    pub(super) fn B() -> BufferLayer<Request<()>> {
        BufferLayer::new(1)
    }
    pub(super) fn S() -> LoadShedLayer {
        LoadShedLayer::new()
    }
    pub(super) fn I() -> TestLayer {
        IdempotencyLayer::new(MemoryStore::new(), "orders", key::header("id")).unwrap()
    }
}

macro_rules! orders {
    ($name:ident: $([$($layer:ident)+])+) => {
        const $name: &[&[&str]] = &[$(&[$(stringify!($layer)),+]),+];
        $(
            // Only type-checked: no stack is built, and no code is generated.
            const _: fn() = || {
                serve(ServiceBuilder::new()$(.layer(layers::$layer()))+.service_fn(handler));
            };
        )+
    };
}

#[rustfmt::skip]
orders! { PAIRS:
    [R T] [R C] [R B] [R S] [R I] [T R] [T C] [T L] [T B] [T S] [T I] [C R] [C T] [C L]
    [C B] [C S] [C I] [L R] [L T] [L C] [L B] [L S] [L I] [B R] [B T] [B C] [B L] [B S]
    [B I] [S R] [S T] [S C] [S L] [S B] [S I] [I R] [I T] [I C] [I B] [I S]
}

#[rustfmt::skip]
orders! { TRIPLES:
    [R T C] [R T B] [R T S] [R T I] [R C T] [R C B] [R C S] [R C I] [R B T] [R B C] [R B L]
    [R B S] [R B I] [R S T] [R S C] [R S B] [R S I] [R I T] [R I C] [R I B] [R I S] [T R C]
    [T R B] [T R S] [T R I] [T C R] [T C L] [T C B] [T C S] [T C I] [T L R] [T L C] [T L B]
    [T L S] [T L I] [T B R] [T B C] [T B L] [T B S] [T B I] [T S R] [T S C] [T S L] [T S B]
    [T S I] [T I R] [T I C] [T I B] [T I S] [C R T] [C R B] [C R S] [C R I] [C T R] [C T L]
    [C T B] [C T S] [C T I] [C L R] [C L T] [C L B] [C L S] [C L I] [C B R] [C B T] [C B L]
    [C B S] [C B I] [C S R] [C S T] [C S L] [C S B] [C S I] [C I R] [C I T] [C I B] [C I S]
    [L R T] [L R C] [L R B] [L R S] [L R I] [L T R] [L T C] [L T B] [L T S] [L T I] [L C R]
    [L C T] [L C B] [L C S] [L C I] [L B R] [L B T] [L B C] [L B S] [L B I] [L S R] [L S T]
    [L S C] [L S B] [L S I] [L I R] [L I T] [L I C] [L I B] [L I S] [B R T] [B R C] [B R S]
    [B R I] [B T R] [B T C] [B T L] [B T S] [B T I] [B C R] [B C T] [B C L] [B C S] [B C I]
    [B L R] [B L T] [B L C] [B L S] [B L I] [B S R] [B S T] [B S C] [B S L] [B S I] [B I R]
    [B I T] [B I C] [B I S] [S R T] [S R C] [S R B] [S R I] [S T R] [S T C] [S T L] [S T B]
    [S T I] [S C R] [S C T] [S C L] [S C B] [S C I] [S L R] [S L T] [S L C] [S L B] [S L I]
    [S B R] [S B T] [S B C] [S B L] [S B I] [S I R] [S I T] [S I C] [S I B] [I R T] [I R C]
    [I R B] [I R S] [I T R] [I T C] [I T B] [I T S] [I C R] [I C T] [I C B] [I C S] [I B R]
    [I B T] [I B C] [I B L] [I B S] [I S R] [I S T] [I S C] [I S B]
}

// A random sample of the 2,520 orders that compile.
#[rustfmt::skip]
orders! { FULL:
    [L B R C T S I] [C R B S T L I] [L I C T B S R] [R I C B L T S] [T C L B S R I] [S L I B R T C]
    [T L C I B S R] [L S C T B I R] [I C R B S T L] [R I S B C L T] [S C I B L R T] [C S T I B L R]
    [R S C I T B L] [T L R S C B I] [B L R S I T C] [B T S C L R I] [T C R I B S L] [L R C T B I S]
    [T L C B R I S] [S I T B C L R] [B C L T I R S] [T R C B S L I] [I R B L T C S] [T S R I B L C]
    [C S I R B L T] [T R B L S C I] [I T B L R C S] [I C T S R B L] [L I C B S R T] [R I C S B L T]
    [C S B T L I R] [R I T S B C L] [I R T C B L S] [T S B C L I R] [L T I C S R B] [B T S L C R I]
    [T I B S L R C] [S B C L I R T] [T B L S C R I] [I R S B L T C] [L C B S T I R] [I R C T S B L]
    [C L T S I R B] [T L S C I R B] [I C R T S B L] [I R S B L C T] [C L B I T S R] [L S B C R I T]
    [T L B C I S R] [S I R C T B L] [T R B S C L I] [I R B C T S L] [T R C S I B L] [C B L S T I R]
    [S C T L B I R] [S L I R T B C] [B C L I S T R] [L C S B T R I] [B S L T I C R] [B L I R T C S]
}

/// The rule: R and I need a `Clone` service below them, L is never `Clone`, and B makes any service
/// `Clone`.
fn compiles(order: &[&str]) -> bool {
    let mut is_clone = true;
    order.iter().rev().all(|layer| {
        let served = is_clone || !matches!(*layer, "R" | "I");
        is_clone = *layer == "B" || (is_clone && *layer != "L");
        served
    })
}

/// All orders of this many layers.
fn permutations(length: usize) -> Vec<Vec<&'static str>> {
    const LAYERS: [&str; 7] = ["R", "T", "C", "L", "B", "S", "I"];
    let mut orders = vec![Vec::new()];
    for _ in 0..length {
        let longer = orders.iter().flat_map(|order: &Vec<_>| {
            let others = LAYERS.iter().filter(|layer| !order.contains(*layer));
            others.map(|layer| [&order[..], &[*layer]].concat())
        });
        orders = longer.collect();
    }
    orders
}

fn allowed(length: usize) -> Vec<Vec<&'static str>> {
    let mut orders = permutations(length);
    orders.retain(|order| compiles(order));
    orders
}

#[test]
fn all_allowed_pairs_and_triples_compile() {
    assert_eq!(PAIRS, allowed(2));
    assert_eq!(TRIPLES, allowed(3));
}

#[test]
fn sixty_allowed_full_orders_compile() {
    let allowed = allowed(7);
    assert_eq!((allowed.len(), permutations(7).len()), (2520, 5040));
    let listed = FULL.iter().filter(|order| allowed.iter().any(|it| it == *order));
    assert_eq!(listed.count(), 60);
    assert!(FULL.iter().all(|order| FULL.iter().filter(|it| it == &order).count() == 1));
}
