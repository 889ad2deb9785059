package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// load is one run of pgbench.
type load struct {
	host     string
	port     int
	database string
	script   string // file
	protocol string // simple, extended, prepared
	clients  int
	seconds  int    // that count
	fence    string // value of the session variable; "" sets none
	tls      bool
	// variables of the script, as name=value.
	variables []string
}

// sample is what one run brought.
type sample struct {
	tps           float64
	p50, p95, p99 time.Duration
	transactions  int
	cpu           time.Duration // of the process between, per transaction
	instructions  float64       // of the same; 0 where the kernel doesn't count them
	busy          bool          // with other work before the run, or robbed of time in it
}

var (
	processedLine = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)
	failedLine    = regexp.MustCompile(`(?m)^number of failed transactions: (\d+)`)
)

// run runs pgbench and reads its result and its log of every transaction.
func (l load) run(ctx context.Context) (sample, error) {
	dir, err := os.MkdirTemp("", "wf-bench-")
	if err != nil {
		return sample{}, err
	}
	defer os.RemoveAll(dir)
	path, err := pgbenchPath()
	if err != nil {
		return sample{}, err
	}
	args := []string{"-n", "-l", "--log-prefix", filepath.Join(dir, "log"),
		"-h", l.host, "-p", strconv.Itoa(l.port), "-U", "postgres", "-M", l.protocol, "-f", l.script,
		"-c", strconv.Itoa(l.clients), "-j", strconv.Itoa(min(2, l.clients)), "-T", strconv.Itoa((l.seconds*3 + 1) / 2)}
	for _, v := range l.variables {
		args = append(args, "-D", v)
	}
	cmd := exec.CommandContext(ctx, path, append(args, l.database)...)
	cmd.Env = append(os.Environ(), "PGSSLMODE="+sslmode(l.tls), "PGGSSENCMODE=disable", "PGOPTIONS=")
	if l.fence != "" {
		cmd.Env = append(cmd.Env, "PGOPTIONS=-c wirefence.token="+l.fence)
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return sample{}, fmt.Errorf("pgbench: %w\n%s", err, complaints.Bytes())
	}
	s, err := parseResult(out.Bytes())
	if err != nil {
		return sample{}, err
	}
	logged, err := readLogs(dir)
	if err != nil {
		return sample{}, err
	}
	var latencies []time.Duration
	if s.tps, latencies, err = steady(logged); err != nil {
		return sample{}, err
	}
	s.p50, s.p95, s.p99 = percentile(latencies, 50), percentile(latencies, 95), percentile(latencies, 99)
	return s, nil
}

func parseResult(out []byte) (s sample, err error) {
	processed := processedLine.FindSubmatch(out)
	if processed == nil {
		return s, fmt.Errorf("unexpected output of pgbench:\n%s", out)
	}
	if failed := failedLine.FindSubmatch(out); failed != nil && string(failed[1]) != "0" {
		return s, fmt.Errorf("%s transactions failed", failed[1])
	}
	if s.transactions, err = strconv.Atoi(string(processed[1])); err != nil {
		return s, err
	}
	if s.transactions == 0 {
		return s, errors.New("pgbench made no transaction")
	}
	return s, nil
}

// transaction is a line of pgbench's log.
type transaction struct {
	latency time.Duration
	ended   time.Time
}

// readLogs returns what is in pgbench's logs, of which each thread writes one.
func readLogs(dir string) ([]transaction, error) {
	names, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	var all []transaction
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if line, ok := parseLogged(lines.Bytes()); ok {
				all = append(all, line)
			}
		}
		file.Close()
	}
	return all, nil
}

// parseLogged reads the third, fifth and sixth field of a log's line: microseconds,
// and seconds and microseconds since 1970 (documentation, pgbench, "Per-Transaction
// Logging").
func parseLogged(line []byte) (transaction, bool) {
	fields := bytes.Fields(line)
	if len(fields) < 6 {
		return transaction{}, false
	}
	var n [3]int64
	for i, field := range [][]byte{fields[2], fields[4], fields[5]} {
		var err error
		if n[i], err = strconv.ParseInt(string(field), 10, 64); err != nil {
			return transaction{}, false
		}
	}
	return transaction{time.Duration(n[0]) * time.Microsecond, time.Unix(n[1], n[2]*1000)}, true
}

// steady returns the rate and the latencies, in ascending order, without a run's first
// third: the first statements of a session take longer, since the server reads catalogs
// and compiles functions, once in a session.
func steady(all []transaction) (tps float64, latencies []time.Duration, err error) {
	if len(all) == 0 {
		return 0, nil, errors.New("pgbench's log is empty")
	}
	byEnd := func(x, y transaction) int { return x.ended.Compare(y.ended) }
	first, last := slices.MinFunc(all, byEnd).ended, slices.MaxFunc(all, byEnd).ended
	from := first.Add(last.Sub(first) / 3)
	for _, t := range all {
		if t.ended.After(from) {
			latencies = append(latencies, t.latency)
		}
	}
	if len(latencies) == 0 {
		return 0, nil, errors.New("too few transactions in pgbench's log")
	}
	slices.Sort(latencies)
	return float64(len(latencies)) / last.Sub(from).Seconds(), latencies, nil
}

func percentile(sorted []time.Duration, p float64) time.Duration {
	at := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

// pgbenchPath finds the newest pgbench of the distribution's packages, else the
// one on the PATH.
func pgbenchPath() (string, error) {
	newest, best := "", 0
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	for _, path := range found {
		if major, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))); major > best {
			newest, best = path, major
		}
	}
	if newest != "" {
		return newest, nil
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", errors.New("no pgbench found: run scripts/install-servers --all (Debian, Ubuntu), or put pgbench on the PATH")
	}
	return path, nil
}
