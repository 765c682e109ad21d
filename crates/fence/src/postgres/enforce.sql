-- Enforcement: triggers that refuse every write to a guarded table unless the transaction carries the
-- current token of the table's scope, whoever issues it. Applied after fence.sql; applying it twice is harmless.

-- Which tables are guarded, and by what. A partition or child is guarded through its root's line.
CREATE TABLE IF NOT EXISTS tenure_fence.guarded (
    relation regclass PRIMARY KEY,
    scope    text COLLATE "C" NOT NULL
);

-- The check. One mind for statements, rows, TRUNCATE and COPY; TG_ARGV[0] is the scope.
CREATE OR REPLACE FUNCTION tenure_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    carried bigint;
    seen    bigint;
BEGIN
    -- The setting alone proves nothing, because anybody can set one; the line in the audit, which only `break_glass`
    -- can write, does. It is looked for only where the setting says that there is one, and in a condition of its own:
    -- one with a query in it is run as a query for every row.
    IF current_setting('tenure.glass_broken', true) = TG_ARGV[0] || ' ' || pg_current_xact_id()::text THEN
        IF EXISTS (SELECT 1 FROM tenure_fence.audit a WHERE a.what = 'break glass' AND a.scope = TG_ARGV[0]
                   AND a.detail ->> 'transaction' = pg_current_xact_id()::text) THEN
            RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
        END IF;
    END IF;
    carried := (nullif(current_setting('tenure.carried', true), '')::jsonb ->> TG_ARGV[0])::bigint;
    IF carried IS NULL THEN
        RAISE EXCEPTION '% on %.% refused: this transaction carries no token for %',
                TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]
            USING ERRCODE = 'TN002',
                  HINT = format('Begin the transaction with SELECT tenure_fence.enter(%L, <token>).', TG_ARGV[0]);
    END IF;
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = TG_ARGV[0] FOR SHARE;
    IF seen IS DISTINCT FROM carried THEN
        PERFORM tenure_fence.raise_stale(TG_ARGV[0], carried, seen);
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

-- Everything that a root stands for: itself, its partitions, its children.
CREATE OR REPLACE FUNCTION tenure_fence.family(p_root regclass) RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE family AS (
        SELECT p_root::oid AS oid
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
    )
    SELECT f.oid::regclass FROM family f JOIN pg_class c ON c.oid = f.oid WHERE c.relkind IN ('r', 'p')
$$;

-- Puts the triggers on one table where they are missing, and makes them fire in every replication role.
CREATE OR REPLACE FUNCTION tenure_fence.cover(p_relation regclass, p_scope text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    -- Rows: this is the tight one, because rows reach a partition through its parent and a child through an
    -- inherited UPDATE without any statement naming it. On a partitioned table the trigger is cloned downwards.
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = p_relation AND tgname = 'tenure_fence_row') THEN
        EXECUTE format('CREATE TRIGGER tenure_fence_row BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
            'EXECUTE FUNCTION tenure_fence.guard(%L)', p_relation, p_scope);
    END IF;
    -- Statements: TRUNCATE has no rows, and a write path that happens to hit none should be found all the same.
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = p_relation AND tgname = 'tenure_fence_statement') THEN
        EXECUTE format('CREATE TRIGGER tenure_fence_statement BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION tenure_fence.guard(%L)', p_relation, p_scope);
    END IF;
    FOR name IN SELECT tgname FROM pg_trigger WHERE tgrelid = p_relation AND tgenabled <> 'A'
            AND tgname IN ('tenure_fence_row', 'tenure_fence_statement') LOOP
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', p_relation, name);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION tenure_fence.guard_table(p_root regclass, p_scope text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bound  text;
    member regclass;
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = p_root) NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '% is not a table', p_root
            USING ERRCODE = 'TN003', HINT = 'Guard the tables beneath a view instead.';
    END IF;
    SELECT scope INTO bound FROM tenure_fence.guarded WHERE relation = p_root;
    IF bound <> p_scope THEN
        RAISE EXCEPTION '% is already guarded by %', p_root, bound
            USING ERRCODE = 'TN003', HINT = 'Remove it first; a table belongs to one scope.';
    END IF;
    INSERT INTO tenure_fence.guarded (relation, scope) VALUES (p_root, p_scope) ON CONFLICT DO NOTHING;
    FOR member IN SELECT tenure_fence.family(p_root) LOOP
        PERFORM tenure_fence.cover(member, p_scope);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION tenure_fence.unguard_table(p_root regclass, p_reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was    text;
    member regclass;
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'removing a guard needs a reason' USING ERRCODE = 'TN003';
    END IF;
    DELETE FROM tenure_fence.guarded WHERE relation = p_root RETURNING scope INTO was;
    IF was IS NULL THEN
        RAISE EXCEPTION '% is not guarded', p_root
            USING ERRCODE = 'TN003', HINT = 'Name the table that was named at install, not a partition of it.';
    END IF;
    -- The root first: dropping its row trigger drops the clones on its partitions.
    FOR member IN SELECT tenure_fence.family(p_root) LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS tenure_fence_row ON %s', member);
        EXECUTE format('DROP TRIGGER IF EXISTS tenure_fence_statement ON %s', member);
    END LOOP;
    INSERT INTO tenure_fence.audit (what, scope, reason, detail)
        VALUES ('remove', was, p_reason, jsonb_build_object('table', p_root::text));
END $$;

-- New partitions and children are covered as they appear.
CREATE OR REPLACE FUNCTION tenure_fence.cover_new() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    line record;
BEGIN
    FOR line IN SELECT f.member, g.scope FROM tenure_fence.guarded g, tenure_fence.family(g.relation) AS f(member)
            WHERE (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = f.member AND t.tgenabled = 'A'
                   AND t.tgname IN ('tenure_fence_row', 'tenure_fence_statement')) < 2 LOOP
        PERFORM tenure_fence.cover(line.member, line.scope);
    END LOOP;
END $$;

-- The documented way past the guard, for this transaction alone: waits until no holder is inside, keeps holders
-- out until it ends, and leaves a line in the audit that commits or vanishes together with what was written.
CREATE OR REPLACE FUNCTION tenure_fence.break_glass(p_scope text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'breaking the glass needs a reason' USING ERRCODE = 'TN003';
    END IF;
    PERFORM pg_advisory_xact_lock(tenure_fence.queue_number(p_scope));
    PERFORM 1 FROM tenure_fence.marks WHERE scope = p_scope FOR UPDATE;
    INSERT INTO tenure_fence.audit (what, scope, reason, detail) VALUES ('break glass', p_scope, p_reason,
        jsonb_build_object('transaction', pg_current_xact_id()::text));
    PERFORM set_config('tenure.glass_broken', p_scope || ' ' || pg_current_xact_id()::text, true);
END $$;

-- One line per guarded table and member of its family, with what is wrong with it, if anything is.
CREATE OR REPLACE FUNCTION tenure_fence.status()
RETURNS TABLE (root text, member text, scope text, token bigint, holder text, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.relation::text, f.member::text, g.scope, m.token, m.holder,
           nullif(concat_ws('; ',
               CASE WHEN m.token IS NULL THEN 'no token has been installed yet: every write is refused' END,
               CASE WHEN NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = f.member AND t.tgenabled = 'A'
                    AND t.tgname = 'tenure_fence_row') THEN 'rows are not guarded' END,
               CASE WHEN NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = f.member AND t.tgenabled = 'A'
                    AND t.tgname = 'tenure_fence_statement') THEN 'TRUNCATE is not guarded' END), '')
    FROM tenure_fence.guarded g
    CROSS JOIN LATERAL tenure_fence.family(g.relation) AS f(member)
    LEFT JOIN tenure_fence.marks m ON m.scope = g.scope
    ORDER BY 1, 2
$$;

REVOKE ALL ON ALL TABLES IN SCHEMA tenure_fence FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure_fence FROM PUBLIC;
