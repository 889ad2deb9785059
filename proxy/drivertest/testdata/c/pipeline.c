/* What users of libpq's pipeline mode do. A line of input starts a run; its
   lines and a dot end it. way_test.go says what the lines mean. */
#define _POSIX_C_SOURCE 200809L
#include <libpq-fe.h>
#include <libpq/libpq-fs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>

enum { PORT, DIRECT, DATABASE, SECURITY, OPTIONS, SET, COMMENT, FIELDS };

static char *field[FIELDS];
static PGconn *conn, *other;

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, PQerrorMessage(conn));
  exit(1);
}

static PGconn *open_to(const char *port, const char *options) {
  bool tls = strcmp(field[SECURITY], "plain") != 0;
  const char *keys[] = {"host", "port", "dbname", "options", "sslmode", "sslrootcert", "channel_binding", NULL};
  const char *values[] = {getenv("PGHOST"), port, field[DATABASE], options, tls ? "verify-full" : "disable",
                          tls ? getenv("ROOT_CERT") : "", strcmp(field[SECURITY], "binding") == 0 ? "require" : "prefer", NULL};
  PGconn *c = PQconnectdbParams(keys, values, 0);
  if (PQstatus(c) != CONNECTION_OK) {
    fprintf(stderr, "%s", PQerrorMessage(c));
    exit(1);
  }
  return c;
}

/* marked returns the text with the run's comment. */
static const char *marked(const char *sql) {
  static char text[4096];
  snprintf(text, sizeof text, "%s%s", sql, field[COMMENT]);
  return text;
}

/* The report of a line: results are added one behind the other. */
static char line[65536];
static const char *kind, *name;

static void begin(const char *k, const char *n) {
  kind = k, name = n;
  line[0] = 0;
}

static void add(const char *format, ...) {
  va_list args;
  va_start(args, format);
  size_t used = strlen(line);
  vsnprintf(line + used, sizeof line - used, format, args);
  va_end(args);
}

static void end(void) { printf("%s %s:%s\n", kind, name, line); }

static void add_result(PGresult *r) {
  if (r == NULL) {
    add(" -");
    return;
  }
  switch (PQresultStatus(r)) {
  case PGRES_FATAL_ERROR: {
    const char *position = PQresultErrorField(r, PG_DIAG_STATEMENT_POSITION);
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    add(" error %s%s%s", state ? state : PQresultErrorMessage(r), position ? " at " : "", position ? position : "");
    break;
  }
  case PGRES_TUPLES_OK:
  case PGRES_SINGLE_TUPLE:
    add(" %s", PQntuples(r) > 0 ? PQgetvalue(r, 0, 0) : "()");
    break;
  case PGRES_COMMAND_OK:
    add(" %s", PQcmdStatus(r)[0] ? PQcmdStatus(r) : "ok");
    break;
  default:
    add(" %s", PQresStatus(PQresultStatus(r)));
  }
  PQclear(r);
}

/* drain takes the results of n statements and syncs, as they come. */
static void drain(int n) {
  while (n > 0) {
    PGresult *r = PQgetResult(conn);
    if (r == NULL) {
      n--;
      continue;
    }
    bool sync = PQresultStatus(r) == PGRES_PIPELINE_SYNC;
    add_result(r);
    if (sync)
      n--; /* no NULL comes behind it */
  }
}

static void send(const char *sql, const char *value) {
  const char *values[] = {value};
  if (!PQsendQueryParams(conn, marked(sql), value != NULL, NULL, values, NULL, NULL, 0))
    die(sql);
}

static void sync_now(void) {
  if (!PQpipelineSync(conn))
    die("sync");
}

static void run(const char *k, const char *n, const char *sql) {
  begin(k, n);
  add_result(PQexec(conn, marked(sql)));
  end();
}

static void plainly(const char *sql) {
  PGresult *r = PQexec(conn, sql);
  if (PQresultStatus(r) != PGRES_COMMAND_OK)
    die(sql);
  PQclear(r);
}

static void pipelines(void) {
  if (!PQenterPipelineMode(conn))
    die("pipeline mode");

  begin("W", "insert");
  send("INSERT INTO t VALUES ($1, 'a')", "1");
  sync_now();
  drain(2);
  end();

  begin("W", "many syncs");
  for (int i = 0; i < 20; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", 100 + i);
    send("INSERT INTO t VALUES ($1::int, 'b') RETURNING id", id);
    sync_now();
  }
  drain(40);
  end();

  begin("W", "one sync");
  for (int i = 0; i < 20; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", 200 + i);
    send("INSERT INTO t VALUES ($1, 'c')", id);
    send("SELECT $1::int", id);
  }
  sync_now();
  drain(41);
  end();

  begin("W", "transactions");
  for (int i = 0; i < 3; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", 300 + i);
    send("BEGIN", NULL);
    send("INSERT INTO t VALUES ($1, 'd')", id);
    send("SAVEPOINT s", NULL);
    send("DELETE FROM t", NULL);
    send("ROLLBACK TO SAVEPOINT s", NULL);
    send("UPDATE t SET v = 'e' WHERE id = $1 RETURNING v", id);
    send("COMMIT", NULL);
    sync_now();
    send("ROLLBACK", NULL); /* ends what an error left open */
    sync_now();
  }
  drain(3 * 10);
  end();

  /* Nothing of the first batch may stay, all of the second does. */
  begin("E", "error in the middle");
  send("SELECT 1", NULL);
  send("SELECT 1 / $1::int", "0");
  send("INSERT INTO t VALUES (400, 'never')", NULL);
  sync_now();
  send("INSERT INTO t VALUES (401, 'kept')", NULL);
  sync_now();
  send("SELECT count(*) FROM t WHERE id IN (400, 401)", NULL);
  sync_now();
  drain(4);
  end();
  begin("W", "behind the error");
  drain(4);
  end();

  begin("E", "error behind a write");
  send("INSERT INTO t VALUES (410, 'never')", NULL);
  send("SELECT 1 / $1::int", "0");
  send("INSERT INTO t VALUES (411, 'never')", NULL);
  sync_now();
  drain(4);
  end();

  begin("E", "errors in a row");
  for (int i = 0; i < 5; i++) {
    send("INSERT INTO t VALUES (420, nöpe)", NULL);
    send("INSERT INTO t VALUES (420, 'never')", NULL);
    sync_now();
  }
  drain(15);
  end();

  begin("W", "prepared");
  if (!PQsendPrepare(conn, "p", marked("INSERT INTO t VALUES ($1, $2)"), 0, NULL))
    die("prepare");
  if (!PQsendDescribePrepared(conn, "p"))
    die("describe");
  for (int i = 0; i < 5; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", 500 + i);
    const char *values[] = {id, "prepared"};
    if (!PQsendQueryPrepared(conn, "p", 2, values, NULL, NULL, 0))
      die("execute");
  }
  sync_now();
  drain(8);
  end();

  begin("W", "call");
  send("CALL commit_one($1)", "90000");
  sync_now();
  drain(2);
  end();

  /* Answered without a sync, since the client asks for it. */
  begin("R", "flush");
  send("SELECT $1::int", "7");
  if (!PQsendFlushRequest(conn))
    die("flush");
  drain(1);
  send("SELECT $1::int", "8");
  sync_now();
  drain(2);
  end();

  begin("W", "flush behind a write");
  send("INSERT INTO t VALUES ($1, 'f')", "600");
  if (!PQsendFlushRequest(conn))
    die("flush");
  drain(1);
  send("SELECT 'in the same batch'", NULL);
  sync_now();
  drain(2);
  end();

  begin("R", "single rows");
  send("SELECT generate_series(1, 5)", NULL);
  if (!PQsetSingleRowMode(conn))
    die("single row mode");
  sync_now();
  drain(2);
  end();

  begin("W", "large");
  char *large = malloc(1000001);
  memset(large, 'x', 1000000);
  large[1000000] = 0;
  send("INSERT INTO t VALUES (610, $1) RETURNING length(v)", large);
  sync_now();
  drain(2);
  free(large);
  end();

  if (!PQexitPipelineMode(conn))
    die("end of pipeline mode");
}

static void large_object(void) {
  plainly("BEGIN");
  begin("V", "large object"); /* by FunctionCall messages */
  Oid oid = lo_creat(conn, INV_READ | INV_WRITE);
  if (oid == InvalidOid) {
    add(" error %s", strstr(PQerrorMessage(conn), "stale fencing token") ? "WF001" : PQerrorMessage(conn));
  } else {
    char text[6] = {0};
    int fd = lo_open(conn, oid, INV_READ | INV_WRITE);
    int wrote = lo_write(conn, fd, "hello", 5);
    lo_lseek(conn, fd, 0, SEEK_SET);
    int got = lo_read(conn, fd, text, 5);
    add(" %d %d %s %d", wrote, got, text, lo_unlink(conn, oid));
  }
  end();
  plainly("ROLLBACK");
}

static void copies(void) {
  begin("W", "copy in");
  add_result(PQexec(conn, marked("COPY t FROM STDIN")));
  if (!strstr(line, "error")) {
    for (int i = 0; i < 1000; i++) {
      char row[32];
      int n = snprintf(row, sizeof row, "%d\tcopied\n", 1000 + i);
      PQputCopyData(conn, row, n);
    }
    PQputCopyEnd(conn, NULL);
    add_result(PQgetResult(conn));
  }
  while (PQgetResult(conn) != NULL)
    ;
  end();
  begin("E", "copy given up");
  add_result(PQexec(conn, marked("COPY t FROM STDIN")));
  if (!strstr(line, "error")) {
    PQputCopyData(conn, "1\tx\n", 4);
    PQputCopyEnd(conn, "given up");
    add_result(PQgetResult(conn));
  }
  while (PQgetResult(conn) != NULL)
    ;
  end();
}

static void cancelled(void) {
  begin("R", "cancel");
  if (!PQsendQuery(conn, marked("SELECT pg_sleep(60)")))
    die("sleep");
  bool asleep = false;
  while (!asleep && PQconsumeInput(conn) && PQisBusy(conn)) { /* a stale one is refused at once */
    PGresult *r = PQexec(other, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()");
    asleep = strcmp(PQgetvalue(r, 0, 0), "0") != 0;
    PQclear(r);
  }
  if (asleep) {
    char error[256];
    PGcancel *c = PQgetCancel(conn);
    if (!PQcancel(c, error, sizeof error))
      die(error);
    PQfreeCancel(c);
  }
  drain(1);
  end();
}

static void notified(void) {
  begin("R", "notify");
  add_result(PQexec(conn, "LISTEN news"));
  if (strstr(line, "error")) {
    end();
    return;
  }
  PQclear(PQexec(other, "NOTIFY news, 'hello'"));
  PGnotify *heard;
  while ((heard = PQnotifies(conn)) == NULL) {
    struct pollfd p = {.fd = PQsocket(conn), .events = POLLIN};
    if (poll(&p, 1, 30000) <= 0)
      die("no notification");
    PQconsumeInput(conn);
  }
  add(" %s %s", heard->relname, heard->extra);
  PQfreemem(heard);
  end();
}

static void scenario(void) {
  conn = open_to(field[PORT], field[OPTIONS]);
  other = open_to(field[DIRECT], "");
  plainly(field[SET]);
  plainly("SET client_min_messages = error");
  run("R", "select", "SELECT 1 + 1");
  pipelines();
  run("W", "simple", "INSERT INTO t VALUES (700, 'x'); INSERT INTO t VALUES (701, 'y') RETURNING v");
  run("W", "vacuum", "VACUUM t");
  run("W", "concurrent index", "CREATE INDEX CONCURRENTLY ON t(id)");
  large_object();
  copies();
  cancelled();
  notified();
  plainly("DISCARD ALL");
  plainly(field[SET]);
  run("W", "reset", "INSERT INTO t VALUES (710, 'behind the reset')");
  run("R", "alive", "SELECT 'alive'");
  PQfinish(conn);
  PQfinish(other);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  static char input[4096];
  while (fgets(input, sizeof input, stdin) != NULL) {
    input[strcspn(input, "\n")] = 0;
    char *rest = input;
    for (int i = 0; i < FIELDS; i++) {
      field[i] = rest;
      rest = strchr(rest, '\t');
      if (rest != NULL)
        *rest++ = 0;
      else if (i + 1 < FIELDS) {
        fprintf(stderr, "too few fields\n");
        return 1;
      }
    }
    scenario();
    printf(".\n");
  }
  return 0;
}
