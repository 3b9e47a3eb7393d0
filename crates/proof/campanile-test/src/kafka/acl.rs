use super::raw::{Connection, TIMEOUT, put_string};
use crate::eventually;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;

/// The versions of the requests are 1, in which strings have a length of 16 bits.
const VERSION: i16 = 1;

const DESCRIBE_ACLS: i16 = 29;
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;

const NAME_IS_LITERAL: u8 = 3;
const ALLOW: u8 = 3;

/// A right of a user of a [secured](crate::KafkaServerBuilder::secured) Kafka.
///
/// ```
/// use campanile_test::Acl;
///
/// let acl = Acl::new("billing", "Read", "group", "billing");
/// assert_eq!(acl.to_string(), "billing: Read on group `billing`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    user: String,
    operation: String,
    resource: String,
    name: String,
}

impl Acl {
    /// Creates the right to an operation, such as `Read`, on a resource: a `topic`, a `group`, a
    /// `transactional id`, or the `cluster`, which always has the name `kafka-cluster`.
    ///
    /// # Panics
    ///
    /// Panics if Kafka has no such operation, or no such kind of resource.
    pub fn new(user: &str, operation: &str, resource: &str, name: &str) -> Self {
        let acl = Self {
            user: user.to_owned(),
            operation: operation.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
        };
        acl.codes().unwrap_or_else(|| panic!("`{acl}` is no right in Kafka"));
        acl
    }

    /// Kafka's codes for the resource and the operation.
    fn codes(&self) -> Option<(u8, u8)> {
        let resource = match &*self.resource {
            "topic" => 2,
            "group" => 3,
            "cluster" => 4,
            "transactional id" => 5,
            _ => return None,
        };
        let operations = ["Read", "Write", "Create", "Delete", "Alter", "Describe"];
        let operation = match &*self.operation {
            "DescribeConfigs" => 10,
            other => 3 + operations.iter().position(|name| *name == other)?,
        };
        Some((resource, u8::try_from(operation).ok()?))
    }

    /// Adds the right, and waits until the broker grants it.
    pub(super) fn add(&self, port: u16) -> io::Result<()> {
        self.change(port, CREATE_ACLS, 1)
    }

    /// Removes the right, and waits until the broker refuses it.
    pub(super) fn remove(&self, port: u16) -> io::Result<()> {
        self.change(port, DELETE_ACLS, 0)
    }

    /// Sends the request, and waits until the broker has this number of such rights: the controller
    /// has answered by then, but the broker learns of the change slightly later.
    fn change(&self, port: u16, request: i16, count: u8) -> io::Result<()> {
        let mut broker = Connection::open((Ipv4Addr::LOCALHOST, port))?;
        // The requests have a list of rights, and the responses one of their errors.
        let response =
            broker.request(request, VERSION, &[&[0, 0, 0, 1], &*self.encode()].concat())?;
        if response.get(8..14) != Some(&[0, 0, 0, 1, 0, 0]) {
            return Err(io::Error::other(format!("Kafka refused to change `{self}`")));
        }
        let changed = eventually(TIMEOUT, || {
            let response = broker.request(DESCRIBE_ACLS, VERSION, &self.encode());
            // No error, an empty text of the error, and the number of resources with such a right.
            let expected = [0, 0, 0, 0, 0, 0, 0, count];
            response.map(|it| (it.get(8..16) == Some(&expected)).then_some(())).transpose()
        });
        changed.unwrap_or_else(|| Err(io::Error::other(format!("`{self}` did not change"))))
    }

    /// Encodes the right, which is also the filter that only this right passes.
    fn encode(&self) -> Vec<u8> {
        let (resource, operation) = self.codes().expect("the constructor has checked it");
        let mut bytes = vec![resource];
        put_string(&mut bytes, &self.name);
        bytes.push(NAME_IS_LITERAL);
        put_string(&mut bytes, &format!("User:{}", self.user));
        put_string(&mut bytes, "*");
        bytes.extend([operation, ALLOW]);
        bytes
    }
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, operation, resource, name } = self;
        write!(f, "{user}: {operation} on {resource} `{name}`")
    }
}
