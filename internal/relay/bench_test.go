package relay

import (
	"bufio"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// The relay's cost: the same commands direct and through it, alone and 100 at a time.
func BenchmarkCommands(b *testing.B) {
	w := start(b)
	value := fmt.Sprintf("%0100d", 0)
	for name, command := range map[string][]byte{
		"GET": appendCommand(nil, "GET", "bench"), "SET": appendCommand(nil, "SET", "bench", value),
	} {
		for _, batch := range []int{1, 100} {
			for _, way := range []struct{ name, addr string }{{"direct", w.redis.Addr()}, {"relay", w.addr}} {
				b.Run(fmt.Sprintf("%s/%d/%s", name, batch, way.name), func(b *testing.B) { exchange(b, way.addr, command, batch) })
			}
		}
	}
}

// exchange sends a batch, reads its replies, and so on, on 16 connections.
func exchange(b *testing.B, addr string, command []byte, batch int) {
	var sent []byte
	for range batch {
		sent = append(sent, command...)
	}
	b.SetParallelism(8)
	defer reportCPU(b)()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		r := bufio.NewReaderSize(c, 64<<10)
		for more := true; more; {
			n := 0
			for n < batch && more {
				if more = pb.Next(); more {
					n++
				}
			}
			if _, err := c.Write(sent[:n*len(command)]); err != nil {
				b.Error(err)
				return
			}
			for range n {
				line, err := r.ReadSlice('\n')
				if err == nil && line[0] == '$' && line[1] != '-' {
					_, err = r.Discard(102)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		}
	})
}

// reportCPU reports the CPU time of this process, which has client and relay: of a command through
// the relay less of one direct it is the relay's, also on a machine that is busy otherwise.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64((used()-before).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

// A lock through the relay, with its seal, and direct; and the seal alone.
func BenchmarkLock(b *testing.B) {
	w := start(b)
	b.Run("seal", func(b *testing.B) {
		token := stack.Value[int64](b, w.db, "SELECT coalesce(max(last_token), 0) FROM wirefence.resource_locks WHERE resource_id = 'other'")
		for b.Loop() {
			token++
			if sealed, err := w.opts.Sealers[0].Seal(b.Context(), "other", fence.Token(token), "bench"); err != nil || !sealed {
				b.Fatal(sealed, err)
			}
		}
	})
	for _, way := range []struct{ name, addr string }{{"direct", w.redis.Addr()}, {"relay", w.addr}} {
		b.Run(way.name, func(b *testing.B) {
			c := dialRaw(b, way.addr)
			_ = c.SetDeadline(time.Time{})
			for b.Loop() {
				c.does("SET "+w.lock+" a NX PX 60000", "+OK")
				c.does("DEL "+w.lock, ":1")
			}
		})
	}
}

// The reading alone.
func BenchmarkParser(b *testing.B) {
	p := parser{locks: locksOf("a-lock"), limit: 1 << 20}
	for name, command := range map[string][]byte{
		"GET": appendCommand(nil, "GET", "bench"), "SET": appendCommand(nil, "SET", "bench", "value"), "HGETALL": appendCommand(nil, "HGETALL", "bench"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				if v, _, err := p.next(command); v != plain || err != nil {
					b.Fatal(v, err)
				}
			}
		})
	}
}
