package relay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func locksOf(keys ...string) *lockSet {
	s := &lockSet{locks: map[string]*lock{}}
	for _, key := range keys {
		s.locks[key] = &lock{key: key}
		s.lengths[byte(len(key))] = true
	}
	return s
}

// Which commands name a lock, by their place, and what of them is special otherwise.
func TestCommandsOfLocks(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"SET L v": "L", "set L v NX PX 30": "L", "SET x L": "", "SETNX L v": "L", "SETEX L 1 v": "L", "PSETEX L 1 v": "L", "GETSET L v": "L",
		"GETDEL L": "L", "GETEX L EX 1": "L", "DEL x L y M L": "L M", "UNLINK L": "L", "DEL x": "", "EXPIRE L 1": "L", "PEXPIRE L 1": "L", "EXPIREAT L 1": "L",
		"PEXPIREAT L 1": "L", "PERSIST L": "L", "HSET L f v": "L", "HSETNX L f v": "L", "HINCRBY L f 1": "L", "HDEL L f": "L", "RENAME L x": "L", "RENAME x L": "L",
		"RENAMENX x L": "L", "COPY x L": "L", "COPY x y L": "", "RESTORE L 0 x": "L", "MSET x L L v": "L", "MSETNX x L": "", "APPEND L v": "L",
		"EVAL script 1 L a": "L", "EVAL L 1 x L": "", "evalsha sha 2 x L": "L", "EVAL_RO s 1 L": "L", "FCALL f 2 L M L": "L M", "EVAL s 0 L": "",
		"EVAL s x L": "", "EVAL s -1 L": "", "EVAL s 99 L": "L", "EVAL s": "", "EVAL": "", "SET": "", "GET L": "L", "GET x": "", "STRLEN L": "",
		"HGETALL L": "", "PUBLISH L x": "", "SUBSCRIBE L": "!", "BLPOP L 0": "", "LPUSH L x": "", "MULTI": "!", "exec": "!", "WATCH L": "!", "SELECT 1": "!",
		"AUTH x": "!", "HELLO 3": "!", "RESET": "!", "CLIENT INFO": "!", "PING": "!", "QUIT": "!", "MONITOR": "!", "NOSUCHCOMMANDTHATISLONG L": "",
	} {
		p := parser{locks: locksOf("L", "M"), limit: 1 << 20}
		raw := appendCommand(nil, strings.Fields(command)...)
		v, n, err := p.next(raw)
		got := ""
		if v == special {
			got = "!"
			var names []string
			for _, l := range p.locks.named(p.spec.place, p.args) {
				names = append(names, l.key)
			}
			if len(names) > 0 {
				got = strings.Join(names, " ")
			}
		}
		if got != want || n != len(raw) || err != nil || p.skipArgs != 0 {
			t.Errorf("%s: %q, want %q; %d of %d bytes, %v", command, got, want, n, len(raw), err)
		}
		inline, _, err := (&parser{locks: p.locks, limit: 1 << 20}).next([]byte(command + "\r\n"))
		if inline != v || err != nil {
			t.Errorf("%s in a line: %v, %v", command, inline, err)
		}
	}
}

// The value that says whether a take was refused, and the arguments that may be a value.
func TestArgumentsOfLocks(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"SET L v NX PX 3": "true false [L v NX PX 3]", "set L v px 3 nx": "true false [L v px 3 nx]", "SET L nx": "false true [L nx]",
		"SET L v XX": "false true [L v XX]", "SET L v NX GET": "false true [L v NX GET]", "SETNX L v": "false false [L v]", "EVAL s 1 L v": "false false [L v]",
		"HSET L f v": "false true [L f v]", "COPY x L": "false false [x L]", "GETSET L v": "false true [L v]",
	} {
		args := bytes.Fields([]byte(command))
		if got := fmt.Sprintf("%t %t %s", takesNX(args), sets(specOf(args[0]), args), values(args)); got != want {
			t.Errorf("%s: %s, want %s", command, got, want)
		}
	}
}

// However a stream of commands is cut, the same commands are found in it, and all bytes are used.
func FuzzParser(f *testing.F) {
	for _, commands := range []string{"SET L v|GET x|DEL a L", "EVAL s 1 L|PING|MULTI|INCR n|EXEC", "MSET a b c d L x"} {
		var raw []byte
		for command := range strings.SplitSeq(commands, "|") {
			raw = appendCommand(raw, strings.Fields(command)...)
		}
		f.Add(raw, uint8(3))
	}
	f.Add([]byte("PING\r\nset L 1\n\r\n*0\r\n*-1\r\n*1\r\n$4\r\nQUIT\r\n"), uint8(1))
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$20\r\n01234567890123456789\r\n"), uint8(7))
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		whole, wholeErr := run(t, raw, len(raw)+1)
		cut, cutErr := run(t, raw, int(step)+1)
		if wholeErr == nil && cutErr == nil && whole != cut {
			t.Fatalf("%q at once, %q in pieces of %d", whole, cut, int(step)+1)
		}
		if (wholeErr == nil) != (cutErr == nil) && len(raw) < 1024 {
			t.Fatalf("%v at once, %v in pieces of %d", wholeErr, cutErr, int(step)+1)
		}
	})
}

// run feeds bytes in pieces to a parser and returns the special commands that it finds.
func run(t *testing.T, raw []byte, step int) (found string, err error) {
	p := parser{locks: locksOf("L"), limit: 1024}
	var b strings.Builder
	for begin, end := 0, 0; ; {
		v, n, err := p.next(raw[begin:end])
		if err != nil {
			return b.String(), err
		}
		if n < 0 || n > end-begin || v != incomplete && v != rest && n == 0 {
			t.Fatalf("verdict %d about %d of %d bytes", v, n, end-begin)
		}
		begin += n
		if v == special {
			fmt.Fprintf(&b, "%q", p.args)
		}
		if n == 0 {
			if end == len(raw) {
				return b.String(), nil
			}
			end = min(end+step, len(raw))
		}
	}
}

// However a stream of replies is cut, their ends are found, and elements adds up to an array.
func FuzzReplies(f *testing.F) {
	for _, raw := range []string{"+OK\r\n", "*3\r\n$1\r\na\r\n:5\r\n*1\r\n_\r\n", "%1\r\n+a\r\n>1\r\n#t\r\n", "|1\r\n+a\r\n:1\r\n+OK\r\n", "$-1\r\n", "*-1\r\n", "=5\r\ntxt:x\r\n", "(123\r\n", ",1.5\r\n", "-ERR x\r\n"} {
		f.Add([]byte(raw+raw), uint8(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		var whole, cut frame
		n, err := whole.next(raw)
		for end := min(int(step)+1, len(raw)); ; end = min(end+int(step)+1, len(raw)) {
			m, cutErr := cut.next(raw[:end])
			if m > 0 || cutErr != nil || end == len(raw) {
				if m != n || (cutErr == nil) != (err == nil) {
					t.Fatalf("%d, %v at once; %d, %v in pieces", n, err, m, cutErr)
				}
				break
			}
		}
		if n < 0 || n > len(raw) {
			t.Fatalf("%d of %d bytes", n, len(raw))
		}
		if all, ok := elements(raw[:n]); ok {
			sum := 0
			for _, e := range all {
				sum += len(e)
			}
			if header := bytes.IndexByte(raw, '\n') + 1; header+sum != n {
				t.Fatalf("%d bytes in %d elements, behind %d, of %d", sum, len(all), header, n)
			}
		}
		_ = bulk(raw[:n])
	})
}
