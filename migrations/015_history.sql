-- The history of handoffs and refusals. It bounds itself by number and age of its rows. It must
-- never fail, delay or change the transaction that it records: a session that cannot write a
-- row at once counts it as dropped, and continues.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The key of a row is its time, not a sequence: sessions of applications write some rows, and
-- nextval would change their lastval. vacuum_truncate is off because VACUUM locks the table
-- to truncate it.
CREATE TABLE wirefence.history (
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    id            uuid NOT NULL DEFAULT gen_random_uuid(),
    kind          text COLLATE "C" NOT NULL CHECK (kind IN ('handoff', 'revocation', 'ended', 'refusal', 'shadow', 'bypass', 'dropped')),
    state         text COLLATE "C",
    resource      text COLLATE "C",
    token         bigint,
    current_token bigint,
    source        text COLLATE "C",
    holder        text,
    former_holder text,
    relation      text,
    reason        text,
    login         text,
    application   text,
    address       inet,
    pid           integer,
    proxy         text,
    database      text,
    traceparent   text COLLATE "C",
    waited_seconds double precision,
    count         bigint NOT NULL DEFAULT 1 CHECK (count >= 1),
    last_at       timestamptz,
    issued        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (issued, at, id)
) WITH (fillfactor = 90, vacuum_truncate = false);

COMMENT ON TABLE wirefence.history IS 'Handoffs and refusals, ordered by at, the newest last. wirefence.history() reads it.';
COMMENT ON COLUMN wirefence.history.at IS 'The time of the event, by the clock of this server; for repeated events, of the first.';
COMMENT ON COLUMN wirefence.history.state IS 'The SQLSTATE of a refusal, or of what shadow mode would have refused.';
COMMENT ON COLUMN wirefence.history.token IS 'For a handoff or revocation, the new token; for a refusal, the presented token.';
COMMENT ON COLUMN wirefence.history.current_token IS 'The last token at the time of the event; for a handoff or revocation, the former one.';
COMMENT ON COLUMN wirefence.history.holder IS 'The holder of the resource; for a handoff, the new one.';
COMMENT ON COLUMN wirefence.history.former_holder IS 'The holder before a handoff or revocation.';
COMMENT ON COLUMN wirefence.history.relation IS 'The guarded table, for an event of a guard.';
COMMENT ON COLUMN wirefence.history.login IS 'The login of the session that was refused, or that made the handoff.';
COMMENT ON COLUMN wirefence.history.pid IS 'The process of that session.';
COMMENT ON COLUMN wirefence.history.proxy IS 'The proxy that reported the event.';
COMMENT ON COLUMN wirefence.history.database IS 'The database of the session, if it is another database of this server: a proxy reports all its events to its own database.';
COMMENT ON COLUMN wirefence.history.traceparent IS 'The traceparent in a comment of the refused statement; for repeated events, of the first.';
COMMENT ON COLUMN wirefence.history.waited_seconds IS 'For a handoff or a revocation, the time since the server received the message that requested it; most of it is the wait for older transactions.';
COMMENT ON COLUMN wirefence.history.issued IS 'True for events that only an issuer can cause: a grant, a revocation, and the backends that these terminated. Clients cause the other events, which must not displace them.';
COMMENT ON COLUMN wirefence.history.count IS 'The number of events between at and last_at; for kind dropped, the number of dropped rows.';

-- The bounds, which apply separately to the rows that issuers cause and to all others, and
-- the counts of raised and recorded refusals.
CREATE TABLE wirefence.history_bounds (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    max_rows bigint NOT NULL DEFAULT 100000 CHECK (max_rows BETWEEN 100 AND 1000000),
    max_age  interval NOT NULL DEFAULT '30 days' CHECK (max_age BETWEEN interval '1 minute' AND interval '100 years'),
    recorded bigint NOT NULL DEFAULT 0,
    collected bigint NOT NULL DEFAULT 0,
    marked     bigint NOT NULL DEFAULT 0,
    marked_at  timestamptz,
    overdue    bigint NOT NULL DEFAULT 0,
    overdue_at timestamptz
);
INSERT INTO wirefence.history_bounds DEFAULT VALUES;

COMMENT ON COLUMN wirefence.history_bounds.recorded IS 'The number of recorded refusals among those that wirefence.refusals counts.';

COMMENT ON COLUMN wirefence.history_bounds.collected IS 'The number of refusals that had been raised when collect_refusals last looked.';
COMMENT ON COLUMN wirefence.history_bounds.marked IS 'The number of refusals that had been raised at marked_at; a proxy updates it every minute.';
COMMENT ON COLUMN wirefence.history_bounds.overdue IS 'The number of refusals of the previous mark that had not been recorded at marked_at.';
COMMENT ON COLUMN wirefence.history_bounds.overdue_at IS 'When overdue last rose.';

-- A rollback does not undo a sequence, so the count includes transactions that were rolled
-- back.
CREATE SEQUENCE wirefence.history_dropped MINVALUE 0 START 0;
SELECT nextval('wirefence.history_dropped');

GRANT SELECT ON wirefence.history TO wirefence_issuer;

-- bypass_history shows the bypasses as rows of the history. Their id is made of the
-- transaction's number and time.
CREATE VIEW wirefence.bypass_history AS
SELECT b.written_at AS at, md5(concat(b.xid, ' ', extract(epoch FROM b.began_at)))::uuid AS id, 'bypass' COLLATE "C" AS kind, NULL::text COLLATE "C" AS state,
       b.resource, NULL::bigint AS token, NULL::bigint AS current_token, NULL::text COLLATE "C" AS source, NULL::text AS holder, NULL::text AS former_holder,
       b.relation, NULL::text AS reason, b.login, b.application, b.address, NULL::integer AS pid, NULL::text AS proxy, NULL::text AS database, NULL::text COLLATE "C" AS traceparent,
       NULL::double precision AS waited_seconds, 1::bigint AS count, NULL::timestamptz AS last_at, false AS issued
FROM wirefence.bypasses AS b;

-- Programs that follow the history read this view, because its index can serve them; the
-- condition inside wirefence.history() cannot use the index.
GRANT SELECT ON wirefence.bypass_history TO wirefence_issuer;

-- prune deletes the oldest rows beyond a bound, at most up_to of each sort. It skips rows
-- that another transaction has locked. It deletes nothing in a snapshot, where a row that
-- another transaction has deleted is an error. It counts by the key, whatever the statistics
-- of the table are. In the session of an application it does not count a large history, which
-- takes long.
CREATE FUNCTION wirefence.prune(up_to bigint, in_session boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off
AS $$
DECLARE
    bounds wirefence.history_bounds;
    too_old timestamptz;
    too_many timestamptz;
    sort boolean;
    pruned bigint := 0;
    deleted bigint;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN 0;
    END IF;
    SELECT * INTO bounds FROM wirefence.history_bounds;
    too_old := clock_timestamp() - bounds.max_age;
    FOREACH sort IN ARRAY ARRAY[true, false] LOOP
        too_many := NULL;
        IF NOT in_session OR bounds.max_rows <= 200000 THEN
            SELECT h.at INTO too_many FROM wirefence.history AS h WHERE h.issued = sort ORDER BY h.at DESC, h.id DESC OFFSET bounds.max_rows LIMIT 1;
        END IF;
        DELETE FROM wirefence.history AS h
        WHERE h.ctid = ANY (ARRAY(SELECT d.ctid FROM wirefence.history AS d WHERE d.issued = sort AND d.at <= greatest(too_old, too_many)
                                  ORDER BY d.at, d.id LIMIT up_to FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
        pruned := pruned + deleted;
    END LOOP;
    RETURN pruned;
END
$$;

-- count_dropped counts a row that could not be written. setval, unlike nextval, leaves
-- lastval alone. It needs a lock so that no count is lost; the end of the subtransaction
-- releases it. Other sessions hold this lock for microseconds; count_dropped does not wait
-- for a session that took it by hand.
CREATE FUNCTION wirefence.count_dropped() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('wirefence.history_dropped', 0));
    PERFORM setval('wirefence.history_dropped', (SELECT d.last_value + 1 FROM wirefence.history_dropped AS d));
    RAISE EXCEPTION 'counted';
EXCEPTION WHEN OTHERS THEN
    NULL;
END
$$;

-- drop_row counts a row that could not be written. The transaction does not try to write
-- further rows, because each of them might wait as long.
CREATE FUNCTION wirefence.drop_row() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('wirefence.history_away', 'on', true), wirefence.count_dropped();
END
$$;

-- drop_if_failed_before counts a row as dropped, and returns true, if the transaction could
-- not write the history before.
CREATE FUNCTION wirefence.drop_if_failed_before() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(current_setting('wirefence.history_away', true), '') = '' THEN
        RETURN false;
    END IF;
    PERFORM wirefence.count_dropped();
    RETURN true;
END
$$;

-- note records an event of the session, in the transaction that calls it. A READ ONLY
-- transaction can't write, so nothing is recorded of it. An event that the session repeats
-- within a minute is counted in the row of the first, once for each transaction: the variable
-- wirefence.noted lists the last eight rows, by at and id. A session updates only its own
-- rows, and none that a transaction it has prepared has locked, so no session waits for
-- another. In a snapshot it updates none, because to read rows could fail the transaction.
-- One row in 256 prunes, by twice the number of rows that come before the next pruning.
--
-- Neither note nor note_ended has a variable of the table's row type: the look-up of the type
-- would wait for a lock on the table before lock_timeout takes effect.
CREATE FUNCTION wirefence.note(kind text, state text, resource text, token bigint, current_token bigint,
                               source text, holder text, relation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
DECLARE
    epoch CONSTANT timestamptz := '1970-01-01 00:00:00+00';
    noted CONSTANT text := coalesce(current_setting('wirefence.noted', true), '');
    moment CONSTANT timestamptz := clock_timestamp();
    new_id CONSTANT uuid := gen_random_uuid();
    earlier record;
    is_counted boolean;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR wirefence.drop_if_failed_before() THEN
        RETURN;
    END IF;
    FOR earlier IN
        SELECT epoch + m[1]::bigint * interval '1 microsecond' AS at, m[2]::uuid AS id
        FROM regexp_matches(right(noted, 400), '([0-9]{16}) ([0-9a-f]{32}),', 'g') AS m
        WHERE current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
    LOOP
        SELECT coalesce(h.last_at, h.at) >= now() INTO is_counted
        FROM wirefence.history AS h
        WHERE NOT h.issued AND h.at = earlier.at AND h.id = earlier.id AND h.at > moment - interval '1 minute' AND h.pid = pg_backend_pid()
          AND (h.kind, h.state, h.resource, h.token, h.current_token, h.source, h.holder, h.relation, h.login, h.application)
              IS NOT DISTINCT FROM (note.kind, note.state, note.resource, note.token, note.current_token, note.source, note.holder, note.relation,
                                    session_user::text, current_setting('application_name'));
        IF is_counted THEN
            RETURN;
        ELSIF FOUND THEN
            UPDATE wirefence.history AS h SET count = h.count + 1, last_at = moment
            WHERE h.ctid = (SELECT i.ctid FROM wirefence.history AS i WHERE NOT i.issued AND i.at = earlier.at AND i.id = earlier.id FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    END LOOP;
    INSERT INTO wirefence.history (at, id, kind, state, resource, token, current_token, source, holder, relation,
                                   login, application, address, pid)
    VALUES (moment, new_id, kind, state, resource, token, current_token, source, holder, relation,
            session_user, current_setting('application_name'), inet_client_addr(), pg_backend_pid());
    PERFORM set_config('wirefence.noted', concat(right(noted, 350), lpad((extract(epoch FROM moment - epoch) * 1000000)::bigint::text, 16, '0'), ' ',
                                                 replace(new_id::text, '-', ''), ','), false);
    IF get_byte(uuid_send(new_id), 0) = 0 THEN
        PERFORM wirefence.prune(512, true);
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM wirefence.drop_row();
END
$$;

-- holder_name returns a holder without the part of its grant, which follows the last slash.
CREATE FUNCTION wirefence.holder_name(holder text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN left(holder, length(holder) - strpos(reverse(holder), '/'));

-- note_ended records, once for each process, that a takeover terminated a backend that held a
-- resource with an older token. The variable wirefence.ended lists these processes for the
-- rest of the transaction.
CREATE FUNCTION wirefence.note_ended(resource text, holder_pid integer, holder_login text, holder_application text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
DECLARE
    ended CONSTANT jsonb := coalesce(nullif(current_setting('wirefence.ended', true), ''), '[]');
BEGIN
    IF ended @> jsonb_build_array(jsonb_build_object('pid', holder_pid)) THEN
        RETURN;
    END IF;
    PERFORM set_config('wirefence.ended', (ended || jsonb_build_object('pid', holder_pid, 'login', holder_login, 'application', holder_application))::text, true);
    IF wirefence.drop_if_failed_before() THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO wirefence.history (kind, resource, login, application, pid, issued)
        VALUES ('ended', note_ended.resource, holder_login, holder_application, holder_pid, pg_has_role(session_user, 'wirefence_issuer', 'MEMBER'));
    EXCEPTION WHEN OTHERS THEN
        PERFORM wirefence.drop_row();
    END;
END
$$;

-- describe_ended lists for DETAIL the processes that a takeover has terminated before it
-- failed: their rows in the history are rolled back.
CREATE FUNCTION wirefence.describe_ended() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(' Ended before that: ' || string_agg('process ' || (e ->> 'pid') || coalesce(' of ' || (e ->> 'login'), ''), ', ') || '.', '')
    FROM jsonb_array_elements(coalesce(nullif(current_setting('wirefence.ended', true), ''), '[]')::jsonb) AS e
$$;

-- note_handoff is the trigger that records every change of a last token. A holder that gets
-- the resource again, with nobody in between, has not taken it over. The variable
-- wirefence.reason is the operator's reason for a revocation.
CREATE FUNCTION wirefence.note_handoff() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
DECLARE
    new_id CONSTANT uuid := gen_random_uuid();
    is_granted CONSTANT boolean := NEW.sealed_at IS DISTINCT FROM OLD.sealed_at;
BEGIN
    IF wirefence.holder_name(NEW.holder) = wirefence.holder_name(OLD.holder) OR wirefence.drop_if_failed_before() THEN
        RETURN NULL;
    END IF;
    INSERT INTO wirefence.history (id, kind, reason, resource, token, current_token, source, holder, former_holder,
                                   login, application, address, pid, waited_seconds, issued)
    VALUES (new_id, CASE WHEN NEW.granted_at IS NULL THEN 'revocation' ELSE 'handoff' END,
            CASE WHEN NEW.granted_at IS NULL THEN coalesce(nullif(left(current_setting('wirefence.reason', true), 1000), ''), 'by an operator')
                 WHEN is_granted THEN 'granted' ELSE 'first use' END,
            NEW.resource_id, NEW.last_token, OLD.last_token, NEW.source, NEW.holder, OLD.holder,
            session_user, current_setting('application_name'), inet_client_addr(), pg_backend_pid(),
            extract(epoch FROM clock_timestamp() - statement_timestamp()), is_granted OR NEW.granted_at IS NULL);
    IF get_byte(uuid_send(new_id), 0) = 0 THEN
        PERFORM wirefence.prune(512, true);
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    PERFORM wirefence.drop_row();
    RETURN NULL;
END
$$;

CREATE TRIGGER note_first AFTER INSERT ON wirefence.resource_locks
FOR EACH ROW WHEN (NEW.granted_at IS NOT NULL OR NEW.sealed_under IS NOT NULL) EXECUTE FUNCTION wirefence.note_handoff();

CREATE TRIGGER note_handoff AFTER UPDATE ON wirefence.resource_locks
FOR EACH ROW WHEN (OLD.last_token <> NEW.last_token) EXECUTE FUNCTION wirefence.note_handoff();

-- mark_unrecorded counts the refusals that were raised at least a minute ago and that no
-- proxy has recorded since. A proxy records the refusals that it sees within some seconds.
CREATE FUNCTION wirefence.mark_unrecorded() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE wirefence.history_bounds AS b
    SET overdue = greatest(b.marked - b.recorded, 0),
        overdue_at = CASE WHEN b.marked - b.recorded > b.overdue THEN clock_timestamp() ELSE b.overdue_at END,
        marked = (SELECT r.last_value FROM wirefence.refusals AS r), marked_at = clock_timestamp()
    WHERE (b.marked_at > clock_timestamp() - interval '50 s') IS NOT TRUE
$$;

-- prune_history also deletes up to 10,000 bypasses, by age alone: refusals, which every role can cause,
-- must not displace them.
CREATE FUNCTION wirefence.prune_history() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pruned bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
        PERFORM wirefence.mark_unrecorded();
        DELETE FROM wirefence.bypasses AS b
        WHERE b.ctid = ANY (ARRAY(SELECT d.ctid FROM wirefence.bypasses AS d
                                  WHERE d.written_at <= (SELECT clock_timestamp() - max_age FROM wirefence.history_bounds)
                                  ORDER BY d.written_at LIMIT 10000 FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS pruned = ROW_COUNT;
    END IF;
    RETURN pruned + wirefence.prune(10000);
END
$$;

CREATE FUNCTION wirefence.set_history(INOUT max_rows bigint DEFAULT NULL, INOUT max_age interval DEFAULT NULL)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_rows NOT BETWEEN 100 AND 1000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'max_rows must be from 100 to 1000000';
    ELSIF max_age NOT BETWEEN interval '1 minute' AND interval '100 years' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'max_age must be from 1 minute to 100 years';
    END IF;
    UPDATE wirefence.history_bounds AS b
    SET max_rows = coalesce(set_history.max_rows, b.max_rows), max_age = coalesce(set_history.max_age, b.max_age)
    RETURNING b.max_rows, b.max_age INTO max_rows, max_age;
END
$$;

CREATE FUNCTION wirefence.history(resource text DEFAULT NULL, since timestamptz DEFAULT NULL, kinds text[] DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS SETOF wirefence.history
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    SELECT k.kind INTO wrong FROM unnest(kinds) AS k(kind)
    WHERE k.kind IS NULL OR k.kind <> ALL (ARRAY['handoff', 'revocation', 'ended', 'refusal', 'shadow', 'bypass', 'dropped']);
    IF FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'unknown kind of history row ' || coalesce(wirefence.quote_name(wrong), 'null'),
            HINT = 'Use handoff, revocation, ended, refusal, shadow, bypass or dropped.';
    ELSIF max_rows IS NULL OR max_rows < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'max_rows must be at least 1';
    END IF;
    RETURN QUERY
    SELECT newest.* FROM (
        SELECT l.* FROM (VALUES (true), (false)) AS v(issued), LATERAL (
            SELECT h.* FROM wirefence.history AS h
            WHERE h.issued = v.issued
              AND (history.resource IS NULL OR h.resource = history.resource)
              AND (since IS NULL OR h.at >= since OR h.last_at >= since)
              AND (kinds IS NULL OR h.kind = ANY (kinds))
            ORDER BY h.at DESC, h.id DESC LIMIT max_rows) AS l
        UNION ALL
        (SELECT b.* FROM wirefence.bypass_history AS b
         WHERE (history.resource IS NULL OR b.resource = history.resource)
           AND (since IS NULL OR b.at >= since)
           AND (kinds IS NULL OR b.kind = ANY (kinds))
         ORDER BY b.at DESC LIMIT max_rows)
        ORDER BY at DESC, id DESC LIMIT max_rows) AS newest
    ORDER BY newest.at, newest.id;
END
$$;

-- record_refusals writes the refusals that a proxy has seen, and the number of rows that it
-- had to drop: a JSON object for each, with the names of the columns. age and last_age are
-- the seconds since the first and the last event. raised says that the database of the
-- session raised the refusal, and so counted it; refusals of other databases are not in the
-- count of this one. It marks the history as one that a proxy looks after, as prune_history does: the
-- proxy may end before it first prunes.
CREATE FUNCTION wirefence.record_refusals(proxy text, entries jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
    INSERT INTO wirefence.history (at, last_at, kind, state, resource, token, current_token, source, holder, relation, reason,
                                   login, application, address, pid, proxy, database, traceparent, count)
    SELECT statement_timestamp() - make_interval(secs => greatest(e.age, 0)),
           CASE WHEN e.count > 1 THEN statement_timestamp() - make_interval(secs => greatest(e.last_age, 0)) END,
           e.kind, e.state, e.resource, e.token, e.current_token, e.source, e.holder, e.relation, left(e.reason, 1000),
           e.login, e.application, e.address, e.pid, record_refusals.proxy, nullif(e.database, current_database()), left(e.traceparent, 55), e.count
    FROM jsonb_to_recordset(entries) AS e(age double precision, last_age double precision, kind text, state text, resource text,
         token bigint, current_token bigint, source text, holder text, relation text, reason text,
         login text, application text, address inet, pid integer, database text, traceparent text, count bigint);
    UPDATE wirefence.history_bounds AS b SET recorded = b.recorded + raised.count
    FROM (SELECT sum(e.count) AS count FROM jsonb_to_recordset(entries) AS e(raised boolean, count bigint, database text)
          WHERE e.raised AND coalesce(e.database, current_database()) = current_database()) AS raised
    WHERE raised.count > 0;
    PERFORM wirefence.mark_unrecorded();
    PERFORM wirefence.prune(greatest(512, 2 * jsonb_array_length(entries)));
END
$$;

-- collect_refusals records none from a time at which a proxy looked after the database. The current
-- token and its holder are those of now.
CREATE FUNCTION wirefence.collect_refusals() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    bounds wirefence.history_bounds;
    raised CONSTANT bigint := (SELECT r.last_value FROM wirefence.refusals AS r);
    new_rows integer;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR raised = (SELECT b.collected FROM wirefence.history_bounds AS b) THEN
        RETURN 0;
    END IF;
    SELECT * INTO bounds FROM wirefence.history_bounds FOR UPDATE;
    INSERT INTO wirefence.history (at, kind, state, resource, token, current_token, holder, pid)
    SELECT refused.at, 'refusal', 'WF00' || (refused.rest >> 27 & 7), coalesce(l.resource_id, g.resource, c.class || '()'), nullif(refused.token, 0),
           l.last_token, l.holder, refused.rest & 4194303
    FROM generate_series(greatest(bounds.collected, raised - 4) + 1, raised) AS n(number)
    CROSS JOIN LATERAL (SELECT pg_sequence_last_value(wirefence.refusal_slot(n.number, 'key')) AS key,
                               pg_sequence_last_value(wirefence.refusal_slot(n.number, 'token')) AS token,
                               pg_sequence_last_value(wirefence.refusal_slot(n.number, 'rest')) AS rest) AS kept
    CROSS JOIN LATERAL (SELECT kept.*, to_timestamp(kept.rest >> 30) AS at) AS refused
    LEFT JOIN wirefence.resource_locks AS l ON wirefence.lock_key(l.resource_id) = refused.key
    LEFT JOIN LATERAL (SELECT u.resource FROM wirefence.guards AS u WHERE wirefence.lock_key(u.resource) = refused.key LIMIT 1) AS g ON true
    LEFT JOIN wirefence.row_classes AS c ON wirefence.lock_key(c.class || '()') = refused.key
    WHERE (refused.rest >> 22 & 31) = n.number % 32 AND (refused.at <= bounds.marked_at + interval '1 min') IS NOT TRUE;
    GET DIAGNOSTICS new_rows = ROW_COUNT;
    UPDATE wirefence.history_bounds AS b SET collected = raised, recorded = b.recorded + new_rows;
    RETURN new_rows;
END
$$;

-- max_rows of history_totals applies separately to the rows that issuers cause and to all others. If a
-- proxy marks refusals, unrecorded is their number at the last mark, and unrecorded_at is when it last
-- rose; otherwise it includes refusals that a proxy may be about to record. dropped is the number of rows
-- that could not be written.
CREATE FUNCTION wirefence.history_totals(OUT kept bigint, OUT max_rows bigint, OUT max_age interval, OUT oldest timestamptz,
                                         OUT raised bigint, OUT unrecorded bigint, OUT dropped bigint, OUT unrecorded_at timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (SELECT count(*) FROM wirefence.history), b.max_rows, b.max_age, (SELECT min(h.at) FROM wirefence.history AS h),
           r.last_value, CASE WHEN b.marked_at > clock_timestamp() - interval '5 min' THEN least(b.overdue, greatest(r.last_value - b.recorded, 0))
                              ELSE greatest(r.last_value - b.recorded, 0) END,
           d.last_value, CASE WHEN b.marked_at > clock_timestamp() - interval '5 min' THEN b.overdue_at END
    FROM wirefence.history_bounds AS b, wirefence.refusals AS r, wirefence.history_dropped AS d
$$;

GRANT EXECUTE ON FUNCTION wirefence.record_refusals(text, jsonb), wirefence.collect_refusals(), wirefence.history_totals(), wirefence.prune_history(), wirefence.set_history(bigint, interval),
    wirefence.history(text, timestamptz, text[], integer) TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.history(text, timestamptz, text[], integer) IS 'Returns the newest rows of the history, the newest last: of one resource, since a time, of some kinds, at most max_rows. Null means all.';
COMMENT ON FUNCTION wirefence.collect_refusals() IS 'Records the last four refusals since the last call, in a database without a proxy, and returns how many. wirefence lock, history and status call it.';
COMMENT ON FUNCTION wirefence.history_totals() IS 'Returns the size and the bounds of the history, and the number of refusals that were raised and not recorded.';
COMMENT ON FUNCTION wirefence.set_history(bigint, interval) IS 'Sets how many rows the history keeps, from 100 to 1,000,000, and for how long, from 1 minute to 100 years; null keeps the present value. It returns both.';
COMMENT ON FUNCTION wirefence.prune_history() IS 'Deletes up to 10,000 rows of the history beyond its bounds, and returns how many. Proxies call it regularly.';
