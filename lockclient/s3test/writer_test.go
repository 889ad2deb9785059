package s3test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
)

// writerProcess as an argument makes the test binary a process that writes a
// document; a way to write and where to are the next arguments.
const writerProcess = "write-a-document"

// document is the name of the document, and of its resource.
const document = "report"

// ttl is short, since the tests wait for a stopped writer's lease to run out.
const ttl = 4 * time.Second

// holder is a process, or a part of one, that can hold the lease.
type holder struct {
	db     *pgxpool.Pool
	client *lockclient.Client
	bucket Bucket
}

func newHolder(ctx context.Context, databaseURL, storeURL, bucket string) (*holder, error) {
	client, err := connect(storeURL)
	if err != nil {
		return nil, err
	}
	h := &holder{bucket: Bucket{client, bucket}}
	if h.db, err = pgxpool.New(ctx, databaseURL); err != nil {
		return nil, err
	}
	h.client, err = lockclient.New(postgres.New(h.db), lockclient.Options{TTL: ttl, RenewEvery: ttl / 8})
	return h, err
}

func (h *holder) close() {
	_ = h.client.Close(context.Background())
	h.db.Close()
}

// way is a way to write a document: after the check it returns the last step.
type way func(ctx context.Context, h *holder, lease *lockclient.Lease) (put func(context.Context) error, err error)

var ways = map[string]way{
	"put": func(_ context.Context, h *holder, lease *lockclient.Lease) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return h.bucket.Put(ctx, document, by(lease)) }, nil
	},
	"replace": func(ctx context.Context, h *holder, lease *lockclient.Lease) (func(context.Context) error, error) {
		doc, etag, err := h.bucket.Get(ctx, document)
		if err == nil && doc.Token > lease.Token() {
			err = ErrChanged
		}
		return func(ctx context.Context) error { return h.bucket.Replace(ctx, document, etag, by(lease)) }, err
	},
	"publish": func(_ context.Context, h *holder, lease *lockclient.Lease) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			key := fmt.Sprintf("%s/%d", document, lease.Token())
			if err := h.bucket.Create(ctx, key, by(lease)); err != nil {
				return err
			}
			return Publish(ctx, h.db, lease, document, key)
		}, nil
	},
}

func by(lease *lockclient.Lease) Document {
	return Document{Token: lease.Token(), Text: "the same for all"}
}

// write guards the write of a document. Between the check and the request it calls pause,
// and then ignores its context: like a process that was stopped right before its request,
// or a slow request.
func (h *holder) write(ctx context.Context, lease *lockclient.Lease, write way, pause func()) error {
	return lease.Guard(ctx, h.db, ttl/4, func(ctx context.Context) error {
		put, err := write(ctx, h, lease)
		if err != nil {
			return err
		}
		pause()
		return put(context.WithoutCancel(ctx))
	})
}

// writeAsTold is the process: it acquires the lease, reports its progress, and continues
// with each line of its input.
func writeAsTold(way, databaseURL, storeURL, bucket string) int {
	ctx := context.Background()
	in := bufio.NewScanner(os.Stdin)
	h, err := newHolder(ctx, databaseURL, storeURL, bucket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	lease, err := h.client.Acquire(ctx, document)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("holds")
	in.Scan()
	err = h.write(ctx, lease, ways[way], func() {
		fmt.Println("checked")
		in.Scan()
	})
	fmt.Println(strings.ReplaceAll(fmt.Sprint("ends: ", err), "\n", " "))
	return 0
}

// writer is such a process.
type writer struct {
	*exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func (w *world) startWriter(t *testing.T, way string) *writer {
	t.Helper()
	cmd := exec.Command(os.Args[0], writerProcess, way, w.database, w.store, w.bucket)
	cmd.Stderr = os.Stderr
	theirs, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = theirs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &writer{cmd, in, bufio.NewReader(out)}
}

// goesOn lets the process continue, and requires its next report.
func (w *writer) goesOn(t *testing.T, want ...string) {
	t.Helper()
	fmt.Fprintln(w.in)
	w.says(t, want...)
}

func (w *writer) says(t *testing.T, want ...string) {
	t.Helper()
	line, err := w.out.ReadString('\n')
	for _, part := range want {
		if !strings.Contains(line, part) {
			t.Fatalf("says %q, %v; want %q", line, err, part)
		}
	}
}

func (w *writer) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := w.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}
