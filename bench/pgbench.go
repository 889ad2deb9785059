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
	seconds  int
	fence    string // value of the session variable; "" sets none
	// variables of the script, as name=value.
	variables []string
}

// sample is what one run brought.
type sample struct {
	tps           float64
	p50, p95, p99 time.Duration
	transactions  int
	cpu           time.Duration // of the process between, per transaction
}

var (
	tpsLine       = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)`)
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
		"-c", strconv.Itoa(l.clients), "-j", strconv.Itoa(min(2, l.clients)), "-T", strconv.Itoa(l.seconds)}
	for _, v := range l.variables {
		args = append(args, "-D", v)
	}
	cmd := exec.CommandContext(ctx, path, append(args, l.database)...)
	cmd.Env = append(os.Environ(), "PGSSLMODE=disable", "PGGSSENCMODE=disable", "PGOPTIONS=")
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
	latencies, err := readLogs(dir)
	if err != nil {
		return sample{}, err
	}
	s.p50, s.p95, s.p99 = percentile(latencies, 50), percentile(latencies, 95), percentile(latencies, 99)
	return s, nil
}

func parseResult(out []byte) (s sample, err error) {
	tps, processed := tpsLine.FindSubmatch(out), processedLine.FindSubmatch(out)
	if tps == nil || processed == nil {
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
	s.tps, err = strconv.ParseFloat(string(tps[1]), 64)
	return s, err
}

// readLogs returns the latencies in pgbench's logs, of which each thread writes
// one, in ascending order.
func readLogs(dir string) ([]time.Duration, error) {
	names, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	var all []time.Duration
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if latency, ok := parseLatency(lines.Bytes()); ok {
				all = append(all, latency)
			}
		}
		file.Close()
	}
	if len(all) == 0 {
		return nil, errors.New("pgbench's log is empty")
	}
	slices.Sort(all)
	return all, nil
}

// parseLatency reads the third field of a log's line, in microseconds
// (documentation, pgbench, "Per-Transaction Logging").
func parseLatency(line []byte) (time.Duration, bool) {
	fields := bytes.Fields(line)
	if len(fields) < 3 {
		return 0, false
	}
	us, err := strconv.ParseInt(string(fields[2]), 10, 64)
	return time.Duration(us) * time.Microsecond, err == nil
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
