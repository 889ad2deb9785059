package s3test

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

//go:embed sql/waiting.sql
var waitingSQL string

// mustWrite writes a document as the successor.
func (w *world) mustWrite(t *testing.T, lease *lockclient.Lease, way string) {
	t.Helper()
	if err := w.write(t.Context(), lease, ways[way], func() {}); err != nil {
		t.Fatal(err)
	}
}

// A writer that is stopped before the check writes nothing when it continues.
func TestAZombieBeforeTheCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	zombie := w.startWriter(t, "put")
	zombie.says(t, "holds")
	zombie.signal(t, syscall.SIGSTOP)
	w.mustWrite(t, w.takeOver(t), "put")
	zombie.signal(t, syscall.SIGCONT)
	zombie.goesOn(t, "ends: effect not begun")
	w.wantWriter(t, document, 2)
}

// A writer that is stopped after the check, for longer than a successor waits, continues
// as a zombie. The store decides whether its late request takes effect.
func TestAZombieBehindTheCheck(t *testing.T) {
	for _, c := range []struct {
		way   string
		first bool // the successor writes before the zombie goes on
		says  string
		last  fence.Token // whose document it is in the end
	}{
		{"put", true, "it succeeded", 1}, // and the successor's is lost
		{"replace", true, ErrChanged.Error(), 2},
		{"replace", false, "it succeeded", 1}, // and the successor learns of it
		{"publish", true, "stale fencing token", 2},
		{"publish", false, "stale fencing token", 0},
	} {
		t.Run(fmt.Sprintf("%s, successor first %v", c.way, c.first), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			zombie := w.startWriter(t, c.way)
			zombie.says(t, "holds")
			zombie.goesOn(t, "checked")
			zombie.signal(t, syscall.SIGSTOP)
			lease := w.takeOver(t)
			_, before, err := w.holder.bucket.Get(t.Context(), document)
			if err != nil {
				t.Fatal(err)
			}
			if c.first {
				w.mustWrite(t, lease, c.way)
			}
			zombie.signal(t, syscall.SIGCONT)
			zombie.goesOn(t, "ends: effect in doubt", c.says)
			if c.way == "publish" {
				w.wantWriter(t, document+"/1", 1)
				w.wantPublished(t, c.last)
			} else {
				w.wantWriter(t, document, c.last)
			}
			if c.way == "replace" && !c.first {
				w.overwritten(t, lease, before)
			}
		})
	}
}

// wantPublished requires the object that readers get, 0 for none.
func (w *world) wantPublished(t *testing.T, token fence.Token) {
	t.Helper()
	key, err := Published(t.Context(), w.db, document)
	if token == 0 && errors.Is(err, pgx.ErrNoRows) {
		return
	}
	if want := fmt.Sprintf("%s/%d", document, token); key != want || err != nil {
		t.Errorf("published is %q, %v; want %q", key, err, want)
	}
	w.wantWriter(t, key, token)
}

// overwritten requires that a successor cannot overwrite an object that it has not read,
// and can once it has.
func (w *world) overwritten(t *testing.T, lease *lockclient.Lease, before string) {
	t.Helper()
	if err := w.holder.bucket.Replace(t.Context(), document, before, by(lease)); err == nil {
		t.Error("the successor has replaced what it had not read")
	}
	w.mustWrite(t, lease, "replace")
	w.wantWriter(t, document, 2)
}

// A handoff waits for a request in progress, and then the successor sees its result.
func TestAHandoffWaitsForTheRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.startWriter(t, "put")
	first.says(t, "holds")
	first.goesOn(t, "checked")
	w.setPreemptAfter(t, time.Minute)
	if _, err := w.admin.Exec(t.Context(), "DELETE FROM wirefence.leases"); err != nil { // as in a crash
		t.Fatal(err)
	}
	acquired := make(chan *lockclient.Lease, 1)
	go func() {
		lease, err := w.client.Acquire(t.Context(), document)
		if err != nil {
			t.Error(err)
		}
		acquired <- lease
	}()
	for waits := false; !waits; {
		if err := w.admin.QueryRow(t.Context(), waitingSQL).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	w.wantWriter(t, document, 0)
	first.goesOn(t, "ends: <nil>")
	lease := <-acquired
	w.wantWriter(t, document, 1)
	w.mustWrite(t, lease, "put")
	w.wantWriter(t, document, 2)
}

// Why a document has its writer's token.
func TestAnETagTellsTheContentAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var seen [2]string
	for i := range seen {
		_, err := w.holder.bucket.Client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: &w.bucket, Key: aws.String("same"), Body: strings.NewReader("same"), Metadata: map[string]string{"token": fmt.Sprint(i)},
		})
		if err != nil {
			t.Fatal(err)
		}
		head, err := w.holder.bucket.Client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &w.bucket, Key: aws.String("same")})
		if err != nil || head.Metadata["token"] != fmt.Sprint(i) {
			t.Fatal(head.Metadata, err)
		}
		seen[i] = *head.ETag
	}
	if seen[0] != seen[1] {
		t.Errorf("ETags %q", seen)
	}
}
