-- The fence inside PostgreSQL: one row per scope, and functions that check it in the same transaction as
-- the work. Any language can call them; nothing here needs a driver of ours. Applying this twice is harmless.
--
-- Errors: TN001 stale token (detail is JSON: scope, presented, seen), TN002 no token in this transaction,
--         TN003 misuse (the message says of what).
CREATE SCHEMA IF NOT EXISTS tenure_fence;

-- The highest token seen, per scope. Never per row: that would protect only rows that the successor has touched.
CREATE TABLE IF NOT EXISTS tenure_fence.marks (
    scope  text COLLATE "C" PRIMARY KEY,
    token  bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    holder text,
    seq    bigint NOT NULL DEFAULT 0,
    cursor bytea
) WITH (fillfactor = 50);   -- serial writers update this row in every transaction: leave room on its page

-- What an operator did past the rules.
CREATE TABLE IF NOT EXISTS tenure_fence.audit (
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    what   text NOT NULL,
    scope  text,
    role   text NOT NULL DEFAULT session_user,
    reason text NOT NULL,
    detail jsonb NOT NULL DEFAULT '{}'
);

-- Marks never fall and never vanish, whoever writes them; only `repair` may lower one.
CREATE OR REPLACE FUNCTION tenure_fence.keep_marks() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'a fence mark is never deleted: that would let every old token in again'
            USING ERRCODE = 'TN003', HINT = 'Use tenure_fence.repair to lower a poisoned mark.';
    END IF;
    -- The setting alone proves nothing, because anybody can set one. `repair` runs as the owner of the marks.
    IF (NEW.token < OLD.token OR NEW.scope <> OLD.scope)
       AND (current_setting('tenure.repairing', true) IS DISTINCT FROM NEW.scope
            OR NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE')) THEN
        RAISE EXCEPTION 'the mark of % cannot fall from % to %', OLD.scope, OLD.token, NEW.token
            USING ERRCODE = 'TN003', HINT = 'Use tenure_fence.repair to lower a poisoned mark.';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER keep_marks_row BEFORE UPDATE OR DELETE ON tenure_fence.marks
    FOR EACH ROW EXECUTE FUNCTION tenure_fence.keep_marks();
CREATE OR REPLACE TRIGGER keep_marks_truncate BEFORE TRUNCATE ON tenure_fence.marks
    FOR EACH STATEMENT EXECUTE FUNCTION tenure_fence.keep_marks();
ALTER TABLE tenure_fence.marks ENABLE ALWAYS TRIGGER keep_marks_row;
ALTER TABLE tenure_fence.marks ENABLE ALWAYS TRIGGER keep_marks_truncate;

CREATE OR REPLACE FUNCTION tenure_fence.raise_stale(p_scope text, p_presented bigint, p_seen bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'stale token: % was presented for %, % has been seen', p_presented, p_scope, p_seen
        USING ERRCODE = 'TN001',
              DETAIL = json_build_object('scope', p_scope, 'presented', p_presented, 'seen', p_seen)::text,
              HINT = 'A newer holder is at work. Stop; do not retry with this token.';
END $$;

-- A queue in front of the row. Share locks on a row are granted past a waiting update, so a zombie with many
-- short transactions could keep a barrier waiting for ever; the lock manager's own queue is fair.
-- No SET of its own: without one the planner puts the expression in the caller's place, and calling it is free.
CREATE OR REPLACE FUNCTION tenure_fence.queue_number(p_scope text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.hashtextextended(p_scope, 7400)
$$;

-- Installs a token. When it has committed, no transaction under a smaller one can commit in this scope: those
-- that were open hold the row and had to end first, those that come later are refused.
CREATE OR REPLACE FUNCTION tenure_fence.barrier(p_scope text, p_token bigint, p_holder text, p_budget_ms bigint DEFAULT NULL)
RETURNS TABLE (predecessor bigint, seq bigint, cursor bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mark tenure_fence.marks%ROWTYPE;
BEGIN
    IF p_budget_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', greatest(p_budget_ms, 1)::text, true);
    END IF;
    PERFORM pg_advisory_xact_lock(tenure_fence.queue_number(p_scope));
    INSERT INTO tenure_fence.marks AS m (scope, token, holder) VALUES (p_scope, p_token, p_holder)
        ON CONFLICT (scope) DO NOTHING;
    IF FOUND THEN
        RETURN QUERY SELECT NULL::bigint, 0::bigint, NULL::bytea;
        RETURN;
    END IF;
    SELECT * INTO mark FROM tenure_fence.marks m WHERE m.scope = p_scope FOR NO KEY UPDATE;
    IF mark.token > p_token THEN
        PERFORM tenure_fence.raise_stale(p_scope, p_token, mark.token);
    END IF;
    IF mark.token < p_token OR mark.holder IS DISTINCT FROM coalesce(p_holder, mark.holder) THEN
        UPDATE tenure_fence.marks m SET token = p_token, holder = p_holder WHERE m.scope = p_scope;
    END IF;
    RETURN QUERY SELECT mark.token, mark.seq, mark.cursor;
END $$;

-- Hands what is left of the lease to the server's own timers, never loosening one that is set: a statement that
-- takes too long is cancelled, and a transaction whose client has frozen is ended instead of blocking the successor.
-- Called inside the functions below alone, with their search_path; one of its own would cost as much as the rest.
CREATE OR REPLACE FUNCTION tenure_fence.bound(p_budget_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    timer text;
    set_to text;
BEGIN
    IF p_budget_ms IS NULL THEN RETURN; END IF;
    FOREACH timer IN ARRAY ARRAY['lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout',
                                 'transaction_timeout'] LOOP
        set_to := current_setting(timer, true);     -- NULL: version 17 brought transaction_timeout
        IF set_to = '0' OR extract(epoch FROM set_to::interval) * 1000 > p_budget_ms THEN
            set_to := set_config(timer, greatest(p_budget_ms, 1)::text, true);
        END IF;
    END LOOP;
END $$;

-- Notes that this transaction has entered a scope under a token, for the triggers on guarded tables. Put in the
-- caller's place, like `queue_number`.
CREATE OR REPLACE FUNCTION tenure_fence.note(p_scope text, p_token bigint) RETURNS text
LANGUAGE sql AS $$
    SELECT set_config('tenure.carried', (coalesce(nullif(current_setting('tenure.carried', true), ''), '{}')::jsonb
        || jsonb_build_object(p_scope, p_token))::text, true)
$$;

-- First statement of a guarded transaction; any number of one holder's transactions may be inside at once.
-- Assignments to `done`, where PERFORM would do: an expression is evaluated in place, PERFORM runs a whole query.
CREATE OR REPLACE FUNCTION tenure_fence.enter(p_scope text, p_token bigint, p_budget_ms bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen bigint;
    done text;
BEGIN
    done := tenure_fence.bound(p_budget_ms);
    -- Read without a lock first: taking the share lock and then raising the mark would deadlock two workers.
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = p_scope;
    IF seen IS NULL OR seen < p_token THEN
        PERFORM tenure_fence.barrier(p_scope, p_token, NULL, p_budget_ms);
    ELSE
        done := pg_advisory_xact_lock_shared(tenure_fence.queue_number(p_scope));
    END IF;
    -- FOR SHARE, not FOR KEY SHARE: the weaker lock does not make the barrier wait.
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = p_scope FOR SHARE;
    IF seen IS DISTINCT FROM p_token THEN
        PERFORM tenure_fence.raise_stale(p_scope, p_token, seen);
    END IF;
    done := tenure_fence.note(p_scope, p_token);
END $$;

-- The same for a worker that keeps a cursor: one transaction at a time, and each gets the next number.
CREATE OR REPLACE FUNCTION tenure_fence.enter_serial(p_scope text, p_token bigint, p_budget_ms bigint DEFAULT NULL)
RETURNS TABLE (seq bigint, cursor bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    seen bigint;
    done text;
BEGIN
    done := tenure_fence.bound(p_budget_ms);
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = p_scope;
    IF seen IS NULL OR seen < p_token THEN
        PERFORM tenure_fence.barrier(p_scope, p_token, NULL, p_budget_ms);
    ELSE
        done := pg_advisory_xact_lock_shared(tenure_fence.queue_number(p_scope));
    END IF;
    -- The update comes first: a share lock upgraded later would deadlock with another worker's.
    RETURN QUERY UPDATE tenure_fence.marks AS m SET seq = m.seq + 1 WHERE m.scope = p_scope AND m.token = p_token
        RETURNING m.seq, m.cursor;
    IF NOT FOUND THEN
        SELECT token INTO seen FROM tenure_fence.marks WHERE scope = p_scope;
        PERFORM tenure_fence.raise_stale(p_scope, p_token, seen);
    END IF;
    done := tenure_fence.note(p_scope, p_token);
    done := set_config('tenure.serial', p_scope, true);
END $$;

-- Moves the cursor, in the transaction of the work that it counts.
CREATE OR REPLACE FUNCTION tenure_fence.advance(p_scope text, p_token bigint, p_cursor bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('tenure.serial', true) IS DISTINCT FROM p_scope THEN
        RAISE EXCEPTION 'the cursor of % can only be moved in a transaction that began with enter_serial', p_scope
            USING ERRCODE = 'TN003', HINT = 'After enter, two workers moving the cursor would deadlock.';
    END IF;
    UPDATE tenure_fence.marks SET cursor = p_cursor WHERE scope = p_scope AND token = p_token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no mark of % with token %', p_scope, p_token USING ERRCODE = 'TN003';
    END IF;
END $$;

-- Lowers a poisoned mark. Waits for every transaction inside, like a barrier. Not for the application's role.
CREATE OR REPLACE FUNCTION tenure_fence.repair(p_scope text, p_token bigint, p_by text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen bigint;
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'a repair needs a reason' USING ERRCODE = 'TN003';
    END IF;
    PERFORM pg_advisory_xact_lock(tenure_fence.queue_number(p_scope));
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = p_scope FOR NO KEY UPDATE;
    IF seen IS NULL THEN
        RAISE EXCEPTION 'no token was ever seen for %', p_scope USING ERRCODE = 'TN003';
    END IF;
    PERFORM set_config('tenure.repairing', p_scope, true);
    UPDATE tenure_fence.marks SET token = p_token, holder = NULL WHERE scope = p_scope;
    PERFORM set_config('tenure.repairing', '', true);
    INSERT INTO tenure_fence.audit (what, scope, reason, detail)
        VALUES ('repair', p_scope, p_reason, jsonb_build_object('by', p_by, 'from', seen, 'to', p_token));
END $$;

-- Nothing is for everybody: `install` grants the application's role what it needs.
-- Named one by one: enforcement, which may be installed already, grants its own.
REVOKE ALL ON tenure_fence.marks, tenure_fence.audit FROM PUBLIC;
REVOKE ALL ON FUNCTION tenure_fence.keep_marks, tenure_fence.raise_stale, tenure_fence.queue_number, tenure_fence.barrier,
    tenure_fence.bound, tenure_fence.note, tenure_fence.enter, tenure_fence.enter_serial, tenure_fence.advance,
    tenure_fence.repair FROM PUBLIC;
