package s3test

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

var realStore = flag.String("s3", "", "an S3 store to test with, such as http://KEY:SECRET@127.0.0.1:7070; default: one in this process")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == writerProcess {
		os.Exit(writeAsTold(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	}
	os.Exit(suite.Run(m))
}

var suite = stack.Suite{Objects: applicationSQL, Check: func() error { return goleak.Find() }}

// connect creates the client for the URL of a store.
func connect(store string) (*s3.Client, error) {
	at, err := url.Parse(store)
	if err != nil {
		return nil, err
	}
	account := aws.Credentials{AccessKeyID: at.User.Username()}
	account.SecretAccessKey, _ = at.User.Password()
	at.User = nil
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(at.String()), Region: "us-east-1", UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return account, nil }),
	}), nil
}

//go:embed sql/application.sql
var applicationSQL string

// world is a bucket, a database, and the successor of the tested writer.
type world struct {
	store, bucket string
	database      string
	admin         *pgx.Conn
	*holder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	db := suite.Database(t, 0)
	w := &world{
		store: *realStore, bucket: fmt.Sprint("wirefence-", time.Now().UnixNano()),
		database: db.URLFor("writer", db.Name), admin: db.Admin,
	}
	if w.store == "" {
		server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
		t.Cleanup(server.Close)
		w.store = "http://KEY:SECRET@" + server.Listener.Addr().String()
	}
	var err error
	if w.holder, err = newHolder(ctx, w.database, w.store, w.bucket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	if _, err := w.holder.bucket.Client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &w.bucket}); err != nil {
		t.Fatal(err)
	}
	return w
}

// setPreemptAfter sets how long a successor waits for an open transaction.
func (w *world) setPreemptAfter(t *testing.T, wait time.Duration) {
	t.Helper()
	if _, err := fence.SetPolicy(t.Context(), w.admin, document, fence.Policy{PreemptAfter: &wait}, "for the test"); err != nil {
		t.Fatal(err)
	}
}

// takeOver acquires the lease of a stopped holder. It terminates the transaction of that
// holder if it blocks the takeover.
func (w *world) takeOver(t *testing.T) *lockclient.Lease {
	t.Helper()
	w.setPreemptAfter(t, 100*time.Millisecond)
	lease, err := w.client.Acquire(t.Context(), document)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// wantWriter requires the token of an object's writer, 0 for no object.
func (w *world) wantWriter(t *testing.T, key string, token fence.Token) {
	t.Helper()
	doc, _, err := w.holder.bucket.Get(t.Context(), key)
	if err != nil || doc.Token != token {
		t.Errorf("%s is %+v, %v; want token %d", key, doc, err, token)
	}
}
