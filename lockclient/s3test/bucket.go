// Package s3test shows three ways to write a document to S3 under a lease, and tests
// which stale writes each of them refuses when its writer is stopped between the check
// and the request. docs/reference/effects.md compares them.
//
// It is a module of its own, so that no user's dependency graph has a client for S3.
package s3test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var (
	//go:embed sql/publish.sql
	publishSQL string
	//go:embed sql/published.sql
	publishedSQL string
)

// Document is the content of an object. It includes the token of its writer: the ETag of
// an object depends on the content alone, so with the token in the metadata the same text
// by two holders would have the same ETag.
type Document struct {
	Token fence.Token `json:"token"`
	Text  string      `json:"text"`
}

// Bucket keeps documents. It is safe for concurrent use.
type Bucket struct {
	Client *s3.Client
	Name   string
}

// ErrChanged says that an object has changed since it was read, or exists although it
// should not. The writer may have been superseded: before it tries again it must read who
// wrote the object.
var ErrChanged = errors.New("the object was changed meanwhile")

// Get reads a document and its ETag, which is "" if there is none.
func (b Bucket) Get(ctx context.Context, key string) (doc Document, etag string, err error) {
	object, err := b.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Name, Key: &key})
	if none := (*types.NoSuchKey)(nil); errors.As(err, &none) {
		return Document{}, "", nil
	} else if err != nil {
		return Document{}, "", fmt.Errorf("get %s: %w", key, err)
	}
	defer object.Body.Close()
	if err := json.NewDecoder(object.Body).Decode(&doc); err != nil {
		return Document{}, "", fmt.Errorf("get %s: %w", key, err)
	}
	return doc, aws.ToString(object.ETag), nil
}

// Put writes a document unconditionally. It does not keep out a request of a zombie that
// was checked in time and arrives late.
func (b Bucket) Put(ctx context.Context, key string, doc Document) error {
	return b.put(ctx, key, doc, &s3.PutObjectInput{})
}

// Replace writes a document if the object still has the ETag with which it was read, ""
// for none. A former holder that has read it fails once the successor has written, and so
// does a successor that has read it before the last write of a former holder.
func (b Bucket) Replace(ctx context.Context, key, etag string, doc Document) error {
	if etag == "" {
		return b.Create(ctx, key, doc)
	}
	return b.put(ctx, key, doc, &s3.PutObjectInput{IfMatch: &etag})
}

// Create writes a document if there is none.
func (b Bucket) Create(ctx context.Context, key string, doc Document) error {
	return b.put(ctx, key, doc, &s3.PutObjectInput{IfNoneMatch: aws.String("*")})
}

func (b Bucket) put(ctx context.Context, key string, doc Document, request *s3.PutObjectInput) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	request.Bucket, request.Key, request.Body = &b.Name, &key, bytes.NewReader(text)
	_, err = b.Client.PutObject(ctx, request)
	if refused := smithy.APIError(nil); errors.As(err, &refused) && refused.ErrorCode() == "PreconditionFailed" {
		return fmt.Errorf("put %s: %w", key, ErrChanged)
	} else if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

// Publish makes an object the current one of a name, in a row of PostgreSQL that readers
// follow. It needs no Guard: the check is in the transaction of the write. The object
// must have a key of its own, which nobody writes again.
func Publish(ctx context.Context, db *pgxpool.Pool, lease *lockclient.Lease, name, key string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lease.Fence().Check()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, publishSQL, name, key)
		return err
	})
}

// Published returns the key of the current object of a name.
func Published(ctx context.Context, db *pgxpool.Pool, name string) (key string, err error) {
	err = db.QueryRow(ctx, publishedSQL, name).Scan(&key)
	return key, err
}
