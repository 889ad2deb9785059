package main

import (
	"bufio"
	"bytes"
	"cmp"
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
	"strings"
	"time"
)

// load is one run of pgbench.
type load struct {
	port                   int
	database, user, script string // script is a file; user is postgres unless it is named
	protocol               string // simple or prepared
	clients, seconds       int    // seconds that count
	fence                  string // value of the session variable; "" sets none
	tls                    bool
	more                   []string // further arguments
}

func (l load) command(ctx context.Context) (*exec.Cmd, error) {
	path, err := pgbenchPath()
	if err != nil {
		return nil, err
	}
	sslmode := "disable"
	if l.tls {
		sslmode = "require"
	}
	cmd := exec.CommandContext(ctx, path, slices.Concat([]string{
		"-n", "-h", "127.0.0.1", "-p", strconv.Itoa(l.port), "-U", cmp.Or(l.user, "postgres"), "-M", l.protocol, "-f", l.script,
		"-c", strconv.Itoa(l.clients), "-j", strconv.Itoa(min(2, l.clients)), "-T", strconv.Itoa((l.seconds*3 + 1) / 2),
	}, l.more, []string{l.database})...)
	cmd.Env = append(os.Environ(), "PGSSLMODE="+sslmode, "PGGSSENCMODE=disable", "PGOPTIONS=")
	if l.fence != "" {
		cmd.Env = append(cmd.Env, "PGOPTIONS=-c wirefence.token="+l.fence)
	}
	return cmd, nil
}

// run runs pgbench and reads its result and its log of every transaction. It returns how
// many there were, too.
func (l load) run(ctx context.Context) (s sample, transactions float64, err error) {
	dir, err := os.MkdirTemp("", "wf-bench-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	l.more = append(slices.Clone(l.more), "-l", "--log-prefix", filepath.Join(dir, "log"))
	cmd, err := l.command(ctx)
	if err != nil {
		return nil, 0, err
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return nil, 0, fmt.Errorf("pgbench: %w\n%s", err, complaints.Bytes())
	}
	transactions, connecting, err := parseResult(out.String())
	if err != nil {
		return nil, 0, err
	}
	logged, err := readLogs(dir)
	if err != nil {
		return nil, 0, err
	}
	rate, latencies, err := steady(logged)
	if err != nil {
		return nil, 0, err
	}
	s = latency(latencies)
	s[tps] = rate
	if connecting > 0 {
		s[login] = connecting + s[p50]
	}
	return s, transactions, nil
}

var outputLine = regexp.MustCompile(`(?m)^(number of transactions actually processed|number of failed transactions|average connection time)[:=\s]+([0-9.]+)`)

// parseResult returns the number of transactions, and with -C the mean time of a
// connection in milliseconds.
func parseResult(out string) (transactions, connecting float64, err error) {
	figures := map[string]float64{}
	for _, m := range outputLine.FindAllStringSubmatch(out, -1) {
		if figures[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			return 0, 0, err
		}
	}
	transactions = figures["number of transactions actually processed"]
	switch failed := figures["number of failed transactions"]; {
	case failed > 0:
		return 0, 0, fmt.Errorf("%v transactions failed", failed)
	case transactions == 0:
		return 0, 0, fmt.Errorf("pgbench made no transaction:\n%s", out)
	}
	return transactions, figures["average connection time"], nil
}

// transaction is a line of pgbench's log.
type transaction struct {
	latency time.Duration
	ended   time.Time
}

// readLogs returns what is in pgbench's logs, of which each thread writes one.
func readLogs(dir string) (all []transaction, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if line, ok := parseLogged(lines.Text()); ok {
				all = append(all, line)
			}
		}
		file.Close()
	}
	return all, nil
}

// parseLogged reads a log's line (documentation, pgbench, "Per-Transaction Logging"): the
// third field has microseconds, the fifth and sixth the time. With -R, the seventh is how
// many microseconds after its schedule the transaction began, which the third includes.
func parseLogged(line string) (transaction, bool) {
	var n [7]int64
	for i, field := range strings.Fields(line) {
		if i < len(n) {
			n[i], _ = strconv.ParseInt(field, 10, 64)
		}
	}
	return transaction{time.Duration(n[2]-n[6]) * time.Microsecond, time.Unix(n[4], n[5]*1000)}, n[4] > 0
}

// steady returns the rate and the latencies, in ascending order, without a run's first
// third: the first statements of a session take longer, since the server reads catalogs
// and compiles functions, once in a session.
func steady(all []transaction) (rate float64, latencies []time.Duration, err error) {
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
	return float64(len(latencies)) / last.Sub(from).Seconds(), latencies, nil
}

// latency returns the percentiles of times, which it sorts.
func latency(times []time.Duration) sample {
	slices.Sort(times)
	return sample{p50: ms(percentile(times, 50)), p99: ms(percentile(times, 99)), worst: ms(percentile(times, 100))}
}

func percentile(sorted []time.Duration, p float64) time.Duration {
	at := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

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
