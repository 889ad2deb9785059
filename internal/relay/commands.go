package relay

import (
	"slices"
	"strconv"

	"github.com/wirefence/wirefence/fence"
)

// place is where a command has keys.
type place int

const (
	nowhere   place = iota
	first           // behind the name
	firstTwo        // the two behind the name
	all             // all arguments
	alternate       // every other argument
	counted         // behind their number, which is the second argument
)

// control is what a command does to the connection.
type control int

const (
	multi control = iota + 1
	execute
	discard
	watch
	unwatch
	selects   // another database
	login     // AUTH and HELLO: another user, or another protocol
	reset     // RESET: as if it were a new connection
	ofClient  // CLIENT, of which REPLY makes replies fail to come
	subscribe // in RESP2 other messages than replies come from then on
	monitor
	reads     // GET: "SET NX, or GET is mine"
	handshake // what clients send when they connect, beside the above
)

// spec is what the relay has to know of a command. The zero value is one on which it doesn't act.
type spec struct {
	place   place
	control control
	writes  bool // its success sets the value, whether or not it is another one
}

// specs are the commands that can take, change or free a lock: of strings and hashes, the two types
// that locks have. A command that isn't here passes. If it changed a lock the lease isn't counted,
// or lasts until its time, and guards refuse what it doesn't cover.
var specs = func() map[name]spec {
	m := map[name]spec{}
	add := func(s spec, names ...string) {
		for _, n := range names {
			m[nameOf([]byte(n))] = s
		}
	}
	add(spec{place: first, writes: true}, "SET", "SETEX", "PSETEX", "GETSET", "RESTORE", "HSET", "HMSET", "HSETEX")
	add(spec{place: first}, "SETNX", "HSETNX", "GETDEL", "GETEX", "APPEND", "SETRANGE", "INCR", "DECR", "INCRBY", "DECRBY", "INCRBYFLOAT",
		"EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST", "MOVE", "DELEX", "DELIFEQ",
		"HINCRBY", "HINCRBYFLOAT", "HDEL", "HGETDEL", "HGETEX", "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT")
	add(spec{place: firstTwo, writes: true}, "RENAME", "RENAMENX", "COPY")
	add(spec{place: all}, "DEL", "UNLINK")
	add(spec{place: alternate, writes: true}, "MSET")
	add(spec{place: alternate}, "MSETNX")
	add(spec{place: counted}, "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO")
	add(spec{place: first, control: reads}, "GET")
	for control, names := range map[control][]string{
		multi: {"MULTI"}, execute: {"EXEC"}, discard: {"DISCARD"}, watch: {"WATCH"}, unwatch: {"UNWATCH"}, selects: {"SELECT"},
		login: {"AUTH", "HELLO"}, reset: {"RESET"}, ofClient: {"CLIENT"}, subscribe: {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"},
		monitor: {"MONITOR", "SYNC", "PSYNC"}, handshake: {"PING", "ECHO", "QUIT", "READONLY", "READWRITE"},
	} {
		add(spec{control: control}, names...)
	}
	return m
}()

// name is a command's name in capitals.
type name [16]byte

func nameOf(text []byte) (n name) {
	if len(text) > len(n) {
		return name{}
	}
	for i, c := range text {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		n[i] = c
	}
	return n
}

func specOf(text []byte) spec { return specs[nameOf(text)] }

// isName reports whether an argument is a word, in whatever case.
func isName(arg []byte, word string) bool {
	return len(arg) == len(word) && nameOf(arg) == nameOf([]byte(word))
}

// lock is a key that the application takes as a lock.
type lock struct {
	key      string
	resource fence.Resource
}

// lockSet is the keys that are locks.
type lockSet struct {
	locks   map[string]*lock
	lengths [256]bool // of keys, modulo 256
}

func (s *lockSet) get(key []byte) *lock {
	if !s.lengths[byte(len(key))] {
		return nil
	}
	return s.locks[string(key)]
}

func (s *lockSet) has(key []byte) bool { return s.get(key) != nil }

// named returns the locks that a command names, each once.
func (s *lockSet) named(p place, args [][]byte) (found []*lock) {
	from, to, step := 1, len(args), 1
	switch p {
	case nowhere:
		return nil
	case first:
		to = min(to, 2)
	case firstTwo:
		to = min(to, 3)
	case alternate:
		step = 2
	case counted:
		if len(args) < 3 {
			return nil
		}
		n, err := strconv.ParseInt(string(args[2]), 10, 32)
		if err != nil || n < 0 {
			return nil // Redis refuses it
		}
		from, to = 3, min(to, 3+int(n))
	}
	for i := from; i < to; i += step {
		if l := s.get(args[i]); l != nil && !slices.Contains(found, l) {
			found = append(found, l)
		}
	}
	return found
}

// values are the arguments among which the application's value may be.
func values(args [][]byte) [][]byte {
	from := 1
	if specOf(args[0]).place == counted {
		from = 3
	}
	return args[min(from, len(args)):]
}

// takesNX reports whether the command is SET with NX and without GET: nil says that it failed.
func takesNX(args [][]byte) bool {
	return isName(args[0], "SET") && hasOption(args, "NX") && !hasOption(args, "GET")
}

func hasOption(args [][]byte, option string) bool {
	for _, arg := range args[min(3, len(args)):] {
		if isName(arg, option) {
			return true
		}
	}
	return false
}

// sets reports whether a command that succeeds sets the value, also where the lock was there
// before: SET with NX doesn't.
func sets(s spec, args [][]byte) bool {
	switch {
	case isName(args[0], "SET"):
		return !hasOption(args, "NX") || hasOption(args, "GET")
	case isName(args[0], "RENAMENX"), isName(args[0], "COPY"):
		return false
	}
	return s.writes
}
