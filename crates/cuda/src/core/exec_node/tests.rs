//! What the node is told of instances whose nodes change.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hinterland_proto::gpu::command::{
    BlasGemm, BlasSet, Command, EventRecord, Fill, GraphChange, GraphSwitch, StreamWait,
};

use super::super::capture_mode::CaptureMode;
use super::super::hostile::{HERE, load, sent_by, with_honest_node, with_lasting_session};
use super::super::launch::{Geometry, Parameters};
use super::super::list::{HostCall, List};
use super::super::node::{Given, Node, NodeKind};
use super::super::outbox::Effect;
use super::super::stream::{APART, Stream};

/// A node that fills nothing, in a stream.
fn fill(stream: &Stream) -> Node {
    fill_with(stream, 0)
}

fn fill_with(stream: &Stream, value: u32) -> Node {
    let fill = Fill { stream: stream.number, element: 1, address: 0, count: 0, value };
    let mut list = List::default();
    list.push(stream.number, None, &fill, 0, |_| ()).unwrap();
    Node::own(NodeKind::Fill, list, Given::Nothing)
}

/// A product of a handle; only that is looked at.
fn product(handle: u32) -> BlasGemm {
    BlasGemm { handle, ..BlasGemm::take(&[0; BlasGemm::BYTES]) }
}

#[test]
fn a_product_that_becomes_something_else_takes_its_settings_with_it_and_leaves_those_of_others() {
    with_lasting_session(|session| {
        let handle = session.blas.create(session, HERE).unwrap();
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        for mode in [1, 2] {
            let set = BlasSet { handle, property: 4, value: mode, more: 0 };
            session.issue(&stream, Effect::Quiet, &set, 0, |_| ()).unwrap();
            session.issue(&stream, Effect::Visible, &product(handle), 0, |_| ()).unwrap();
        }
        let graph = session.end_capture(&stream).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        let with = Node { kind: NodeKind::Kernel, ..fill(&stream) };
        let said = || {
            let mut said = Vec::new();
            session
                .with_instance(exec, |does| {
                    let list = does.definition().done();
                    said.extend((0..list.entries.len()).map(|entry| match list.frame(entry) {
                        (BlasSet::WORD, body) => (BlasSet::WORD, BlasSet::take(body).value),
                        (word, _) => (word, 0),
                    }));
                    Ok(())
                })
                .unwrap();
            said
        };
        session.change_exec_node(exec, nodes[0], &with).unwrap();
        assert_eq!(said(), [(Fill::WORD, 0), (BlasSet::WORD, 2), (BlasGemm::WORD, 0)]);
        session.change_exec_node(exec, nodes[1], &with).unwrap();
        assert_eq!(said(), [(Fill::WORD, 0), (Fill::WORD, 0)]);
    });
}

#[test]
fn a_launch_in_another_stream_waits_for_the_one_before_where_the_driver_may_have_made_the_instance_anew() {
    with_lasting_session(|session| {
        let streams = [(); 2].map(|()| session.create_stream(HERE, APART, 0).unwrap());
        let graph = session.add_graph(HERE, 0).unwrap();
        let nodes = [(); 2].map(|()| session.add_node(&graph, &[], fill(&streams[0])).unwrap());
        let exec = session.instantiate(&graph, 0).unwrap();
        let is_done = |stream: &Arc<Stream>| stream.has_reached(stream.last());
        let launch = |at: usize| session.launch_exec(exec, &streams[at]).unwrap();
        launch(0);
        launch(1);
        assert!(!is_done(&streams[0]), "the node itself orders launches of one instance");
        session.switch_exec_node(exec, nodes[0], false).unwrap();
        launch(0);
        assert!(is_done(&streams[1]));
        session.change_exec_node(exec, nodes[1], &fill(&streams[1])).unwrap();
        launch(1);
        assert!(is_done(&streams[0]));
        session.update_exec(exec, &graph).unwrap();
        launch(0);
        assert!(is_done(&streams[1]));
        launch(1);
        assert!(!is_done(&streams[0]));
    });
}

#[test]
fn a_node_of_an_instance_is_switched_and_changed_by_a_command_of_its_own() {
    let sent = sent_by(|session| {
        let streams = [(); 2].map(|()| session.create_stream(HERE, APART, 0).unwrap());
        session.begin_capture(&streams[0], CaptureMode::Relaxed).unwrap();
        for value in 0..3 {
            let fill = Fill { stream: streams[0].number, element: 1, address: 0, count: 0, value };
            session.issue(&streams[0], Effect::Visible, &fill, 0, |_| ()).unwrap();
        }
        let graph = session.end_capture(&streams[0]).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        // What is to be done goes out when the instance is made ready.
        let ready = || {
            let exec = session.instances.execs.get(exec).unwrap();
            exec.with(|does| session.make_ready(does, 0)).unwrap();
        };
        session.switch_exec_node(exec, nodes[1], false).unwrap();
        ready();
        session.change_exec_node(exec, nodes[2], &fill_with(&streams[1], 7)).unwrap();
        session.switch_exec_node(exec, nodes[0], false).unwrap();
        session.switch_exec_node(exec, nodes[1], true).unwrap();
        ready();
        session.switch_exec_node(exec, nodes[1], false).unwrap();
        session.switch_exec_node(exec, nodes[1], true).unwrap();
        ready();
    });
    let of_instance = |command: &Command| match command {
        Command::Graph(_) => Some((0, 0, 0)),
        Command::GraphInstantiate(_) => Some((1, 0, 0)),
        Command::GraphUpdate(_) => Some((2, 0, 0)),
        Command::GraphSwitch(GraphSwitch { step, is_on, .. }) => Some((3, *step, *is_on)),
        Command::GraphChange(GraphChange { step, word, .. }) => Some((4, *step, *word)),
        _ => None,
    };
    let told: Vec<_> = sent.iter().filter_map(of_instance).collect();
    assert_eq!(told, [(0, 0, 0), (1, 0, 0), (3, 1, 0), (4, 2, Fill::WORD), (3, 0, 0), (3, 1, 1)]);
}

#[test]
fn a_list_of_an_instance_has_no_commands_that_are_switched_off_and_whose_memory_has_gone() {
    /// A frame of a fill.
    const BYTES: u64 = 40;
    let sent = sent_by(|session| {
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        // Nothing is anywhere in this session.
        for count in [0, 4, 0, 0] {
            let fill = Fill { stream: stream.number, element: 1, address: 4096, count, value: 0 };
            session.issue(&stream, Effect::Visible, &fill, 0, |_| ()).unwrap();
        }
        let graph = session.end_capture(&stream).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        let ready = || {
            let exec = session.instances.execs.get(exec).unwrap();
            exec.with(|does| session.make_ready(does, 0)).unwrap();
        };
        for off in [0, 1] {
            session.switch_exec_node(exec, nodes[off], false).unwrap();
        }
        ready();
        // Two commands in the place of one: a list, which is refused as a whole if it names what has gone.
        let mut list = List::default();
        for value in [1, 2] {
            let fill = Fill { stream: stream.number, element: 1, address: 0, count: 0, value };
            list.push(stream.number, None, &fill, 0, |_| ()).unwrap();
        }
        session.change_exec_node(exec, nodes[2], &Node::own(NodeKind::Fill, list, Given::Nothing)).unwrap();
        ready();
        ready();
        session.switch_exec_node(exec, nodes[1], true).unwrap();
        ready();
    });
    let of_instance = |command: &Command| match command {
        Command::Graph(head) => Some((0, head.bytes / BYTES)),
        Command::GraphUpdate(_) => Some((2, 0)),
        Command::GraphSwitch(GraphSwitch { step, .. }) => Some((3, u64::from(*step))),
        _ => None,
    };
    let told: Vec<_> = sent.iter().filter_map(of_instance).collect();
    // What is switched on again is the program's to answer for.
    assert_eq!(told, [(0, 4), (3, 0), (3, 1), (0, 3), (2, 0), (0, 5), (2, 0), (3, 0)]);
}

#[test]
fn a_list_of_an_instance_has_no_kernel_that_is_switched_off_and_was_unloaded() {
    let sent = sent_by(|session| {
        let (module, kernel) = load(session);
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        let once = Geometry { grid: [1; 3], block: [1; 3], ..Geometry::default() };
        // SAFETY: the kernel has no parameters.
        unsafe { session.launch(&kernel, &stream, &once, Parameters::Block(std::ptr::null(), 0)) }.unwrap();
        let fill = Fill { stream: stream.number, element: 1, address: 0, count: 0, value: 0 };
        session.issue(&stream, Effect::Visible, &fill, 0, |_| ()).unwrap();
        let graph = session.end_capture(&stream).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        session.switch_exec_node(exec, nodes[0], false).unwrap();
        // Two commands in the place of one: a list.
        for unloads in [false, true] {
            if unloads {
                session.unload(&session.remove_binary(module).unwrap()).unwrap();
            }
            let mut list = List::default();
            for value in [1, 2, 3].into_iter().skip(usize::from(unloads)) {
                let fill = Fill { value, ..fill };
                list.push(stream.number, None, &fill, 0, |_| ()).unwrap();
            }
            let node = Node::own(NodeKind::Fill, list, Given::Nothing);
            session.change_exec_node(exec, nodes[1], &node).unwrap();
            let exec = session.instances.execs.get(exec).unwrap();
            exec.with(|does| session.make_ready(does, 0)).unwrap();
        }
    });
    let of_instance = |command: &Command| match command {
        Command::Graph(head) => Some((0, head.bytes)),
        Command::GraphUpdate(_) => Some((2, 0)),
        Command::GraphSwitch(GraphSwitch { step, .. }) => Some((3, u64::from(*step))),
        _ => None,
    };
    let told: Vec<_> = sent.iter().filter_map(of_instance).collect();
    assert_eq!(told, [(0, 104), (0, 184), (2, 0), (3, 0), (0, 80), (2, 0)]);
}

#[test]
fn an_instance_is_changed_on_after_a_handle_that_it_names_has_ended() {
    with_honest_node(|session| {
        let handle = session.blas.create(session, HERE).unwrap();
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        session.issue(&stream, Effect::Visible, &product(handle), 0, |_| ()).unwrap();
        let filled = Fill { stream: stream.number, element: 1, address: 0, count: 0, value: 0 };
        session.issue(&stream, Effect::Visible, &filled, 0, |_| ()).unwrap();
        let graph = session.end_capture(&stream).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        session.blas.destroy(session, handle).unwrap();
        session.switch_exec_node(exec, nodes[1], false).unwrap();
        session.change_exec_node(exec, nodes[1], &fill_with(&stream, 1)).unwrap();
        // The product itself would have to be left out by a list that names the handle no more: that is one.
        session.switch_exec_node(exec, nodes[0], false).unwrap();
        assert_eq!(session.switch_exec_node(exec, nodes[0], true), Ok(()), "it is as it was");
    });
}

/// Commands of a list that are done before one of it.
fn in_front(list: &List, of: usize) -> BTreeSet<usize> {
    let (mut streams, mut events) = (BTreeMap::new(), BTreeMap::new());
    for entry in 0..=of {
        let stream: &mut BTreeSet<usize> = streams.entry(list.entries[entry].stream).or_default();
        match list.frame(entry) {
            (EventRecord::WORD, body) => drop(events.insert(EventRecord::take(body).event, stream.clone())),
            (StreamWait::WORD, body) => {
                stream.extend(events.get(&StreamWait::take(body).event).into_iter().flatten());
            }
            _ if entry == of => return stream.clone(),
            _ => drop(stream.insert(entry)),
        }
    }
    BTreeSet::new()
}

#[test]
fn what_is_behind_a_graph_in_a_graph_stays_behind_what_takes_its_place() {
    with_honest_node(|session| {
        let streams = [(); 2].map(|()| session.create_stream(HERE, APART, 0).unwrap());
        let [first, second] = &streams;
        let event = session.create_event(HERE, 2).unwrap();
        session.begin_capture(first, CaptureMode::Relaxed).unwrap();
        for (from, to) in [(first, second), (second, first)] {
            let filled = Fill { stream: from.number, element: 1, address: 0, count: 0, value: 1 };
            session.issue(from, Effect::Visible, &filled, 0, |_| ()).unwrap();
            session.record_event(&event, from, 0).unwrap();
            session.wait_event(to, &event, 0).unwrap();
        }
        // The last command of the list is of the other stream.
        session.record_event(&event, second, 0).unwrap();
        let inner = session.end_capture(first).unwrap();
        let graph = session.add_graph(HERE, 0).unwrap();
        let child = session.add_node(&graph, &[], session.child_of(&inner).unwrap()).unwrap();
        session.add_node(&graph, &[child], fill_with(second, 2)).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        let other = session.add_graph(HERE, 0).unwrap();
        session.add_node(&other, &[], fill_with(first, 3)).unwrap();
        session.change_exec_node(exec, child, &session.child_of(&other).unwrap()).unwrap();
        session
            .with_instance(exec, |does| {
                let list = does.definition().done();
                let of_value = |value| {
                    (0..list.entries.len()).find(|entry| match list.frame(*entry) {
                        (Fill::WORD, body) => Fill::take(body).value == value,
                        _ => false,
                    })
                };
                let (other, behind) = (of_value(3).unwrap(), of_value(2).unwrap());
                assert!(in_front(&list, behind).contains(&other));
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn an_object_that_a_node_is_given_again_and_again_is_kept_once() {
    unsafe extern "C" fn end(_: *mut std::ffi::c_void) {}
    with_lasting_session(|session| {
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        let inner = session.add_graph(HERE, 0).unwrap();
        session.add_node(&inner, &[], fill(&stream)).unwrap();
        let object = session.create_user_object(HostCall { function: end, data: 0 }, 1).unwrap();
        session.keep_user_object(&inner, object, 1, true).unwrap();
        let graph = session.add_graph(HERE, 0).unwrap();
        let child = session.add_node(&graph, &[], session.child_of(&inner).unwrap()).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        for _ in 0..3 {
            session.change_exec_node(exec, child, &session.child_of(&inner).unwrap()).unwrap();
        }
        let kept = session.with_instance(exec, |does| Ok(does.definition().source.objects.len()));
        assert_eq!(kept, Ok(1));
    });
}
