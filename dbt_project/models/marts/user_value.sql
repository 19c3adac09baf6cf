with spending as (
    select
        user_id,
        occurred_at,
        event_type = 'purchase' as bought,
        case when event_type = 'purchase' then amount_cents end as paid_cents
    from {{ source('silver', 'clicks') }}
)

select
    user_id,
    count(*) as clicks,
    count(*) filter (where bought) as purchases,
    cast(coalesce(sum(paid_cents), 0) as bigint) as revenue_cents,
    max(occurred_at) as last_seen_at
from spending
group by user_id
