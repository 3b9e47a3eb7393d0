//! The DynamoDB store on Amazon's DynamoDB Local.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod clock;
mod contract;
mod costs;
mod credentials;
mod items;
mod layer;
mod outage;
mod support;
mod table;
