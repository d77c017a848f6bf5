//! The one door to the functions: `FCALL` with the keys of the queues, where they are now.

use crate::address::{self, Node};
use crate::connection::{Connection, Failure, command};
use crate::error::Error;
use crate::error_class::{self, Fault, Step, next};
use crate::keys::Keys;
use crate::nodes::Nodes;
use redis::{Cmd, ToRedisArgs, Value};
use std::time::{Duration, Instant};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It changes nothing, or nothing the second time, so it is made again if its answer is lost.
    Repeats,
    /// It changes something: without an answer it may have done so or not.
    Writes,
    /// The same, and replicas have to confirm it, if the settings say so.
    Confirmed,
}

/// An argument of a function, byte for byte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl ToRedisArgs for Arg<'_> {
    fn write_redis_args<W: redis::RedisWrite + ?Sized>(&self, out: &mut W) {
        match self {
            Self::Text(text) => text.write_redis_args(out),
            Self::Bytes(bytes) => out.write_arg(bytes),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) nodes: Nodes,
    replicas: Option<(usize, Duration)>,
}

struct Call<'a> {
    command: Cmd,
    queues: &'a [&'a Keys],
    effect: Effect,
}

/// Why an attempt failed, and where the server says that the queue is.
struct Trouble {
    fault: Fault,
    error: Error,
    to: Option<Node>,
}

impl Calls {
    pub(crate) fn new(nodes: Nodes, replicas: Option<(usize, Duration)>) -> Self {
        Self { nodes, replicas }
    }

    /// Calls a function for these queues, of which there is at least one. It returns within the
    /// time for an answer of each attempt, and a slot that is moving is awaited for that time, too.
    pub(crate) fn fcall(
        &self,
        queues: &[&Keys],
        function: &str,
        args: &[Arg<'_>],
        effect: Effect,
    ) -> Result<Value, Error> {
        self.fcall_with(queues, &[], function, args, effect)
    }

    /// Does the same with further keys, which are in the slot of the queues.
    pub(crate) fn fcall_with(
        &self,
        queues: &[&Keys],
        own: &[&str],
        function: &str,
        args: &[Arg<'_>],
        effect: Effect,
    ) -> Result<Value, Error> {
        let slot = queues[0].slot;
        if self.nodes.is_cluster() && queues.iter().any(|queue| queue.slot != slot) {
            let names: Vec<_> = queues.iter().map(|queue| &*queue.name).collect();
            let what = format!("one call goes into the queues {names:?}, which are in several slots of the cluster");
            return Err(Error::config(what, "give all of them one tag (`RedisOptions::tag`), or make a call for each"));
        }
        let mut command = redis::cmd("FCALL");
        command.arg(function);
        match queues {
            // The functions know the others, and a slot moves in a cluster alone.
            [queue] if own.is_empty() && !self.nodes.is_cluster() => _ = command.arg(1).arg(&queue.keys[0]),
            _ => {
                command.arg(26 * queues.len() + own.len());
                queues.iter().for_each(|queue| _ = command.arg(&queue.keys));
                own.iter().for_each(|key| _ = command.arg(key));
            }
        }
        args.iter().for_each(|arg| _ = command.arg(arg));
        let call = Call { command, queues, effect };
        let (began, limit) = (Instant::now(), self.nodes.dial.answer_timeout);
        let (mut failed, mut asked) = (0, None);
        loop {
            let asks: Option<Node> = asked.take();
            let node = asks.clone().map_or_else(|| self.nodes.node_of(slot), Ok);
            let node = node.map_err(|source| Error::shared(source).about(queues))?;
            let trouble = match self.attempt(&node, asks.is_some(), &call) {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            failed += 1;
            if trouble.fault.is_of_place() {
                self.nodes.doubt(&node);
            }
            match next(trouble.fault, effect == Effect::Repeats, failed, began.elapsed(), limit) {
                Step::Follow => match (trouble.to, &trouble.error) {
                    (Some(to), Error::Refused { code, .. }) if code == "ASK" => asked = Some(to),
                    (Some(to), _) => self.nodes.moved(slot, to),
                    (None, _) => return Err(trouble.error),
                },
                Step::LookAgain => {}
                Step::Wait(time) => {
                    self.nodes.wait(time);
                    failed = 0;
                }
                Step::Fail => return Err(trouble.error),
            }
        }
    }

    fn attempt(&self, node: &Node, asking: bool, call: &Call<'_>) -> Result<Value, Trouble> {
        let opened = self.nodes.connection(node);
        let mut connection = opened.map_err(|error| Trouble::new(error.about(call.queues)))?;
        let made = self.make(&mut connection, asking, call);
        if !made.as_ref().is_err_and(|trouble| trouble.fault.is_of_place()) {
            self.nodes.give(connection);
        }
        made
    }

    fn make(&self, connection: &mut Connection, asking: bool, call: &Call<'_>) -> Result<Value, Trouble> {
        let (node, queues) = (connection.node.clone(), call.queues);
        let failed = |failure| Trouble::of(failure, &node, queues);
        // What comes before the call may be made again.
        let before = |failure| {
            failed(match failure {
                Failure::NoAnswer(error) => Failure::NotSent(error),
                other => other,
            })
        };
        connection.check_functions().map_err(|error| Trouble::new(error.about(queues)))?;
        for queue in queues {
            connection.greet(queue, asking).map_err(before)?;
        }
        if asking {
            connection.ask(&command("ASKING", &[])).map_err(before)?;
        }
        let answer = connection.ask(&call.command).map_err(failed).inspect_err(|trouble| {
            if matches!(trouble.error, Error::Functions { .. }) {
                connection.forget_functions();
            }
        })?;
        let Some((wanted, time)) = self.replicas.filter(|_| call.effect == Effect::Confirmed) else {
            return Ok(answer);
        };
        let unsure = |fault, why: String| Trouble { fault, error: Error::unsure(&node, why).about(queues), to: None };
        match connection.wait_for_replicas(wanted, time) {
            Ok(found) if found >= wanted => Ok(answer),
            Ok(found) => {
                Err(unsure(Fault::Final, format!("{found} of {wanted} replicas have confirmed it in {time:?}")))
            }
            Err(_) => Err(unsure(Fault::NoAnswer, "the server was lost before a replica has confirmed it".to_owned())),
        }
    }
}

impl Trouble {
    /// One before the call was sent.
    fn new(error: Error) -> Self {
        let fault = match &error {
            Error::Lost { .. } => Fault::NotSent,
            Error::Server { .. } => Fault::Elsewhere,
            Error::Refused { code, .. } => error_class::fault_of(code),
            _ => Fault::Final,
        };
        Self { fault, error, to: None }
    }

    fn of(failure: Failure, node: &Node, queues: &[&Keys]) -> Self {
        let fault = failure.fault();
        let to = match &failure {
            Failure::Said(said) if fault == Fault::Redirected => {
                let place = said.details().and_then(|text| text.split_ascii_whitespace().nth(1));
                place.and_then(|place| address::redirected(node, place))
            }
            _ => None,
        };
        Self { fault, error: failure.into_error(&node.to_string()).about(queues), to }
    }
}
