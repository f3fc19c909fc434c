import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Left


def read_associations(apps, schema_editor):
    """GitHub's JSON of known issues has the word already: the author gate may be on from the next start."""
    issues = apps.get_model("tasks", "Issue")._default_manager
    issues.update(author_association=Left(Coalesce(KT("raw__author_association"), Value("")), 30))


class Migration(migrations.Migration):

    dependencies = [
        ('tasks', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='EditedIssue',
            fields=[
                ('issue', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='edit', serialize=False, to='tasks.issue')),
                ('title', models.TextField(verbose_name='title')),
                ('body', models.TextField(blank=True, verbose_name='body')),
                ('edited_at', models.DateTimeField(verbose_name='edited')),
            ],
            options={
                'verbose_name': 'edited issue',
                'verbose_name_plural': 'edited issues',
            },
        ),
        migrations.AddField(
            model_name='issue',
            name='author_association',
            field=models.CharField(blank=True, max_length=30, verbose_name="author's part"),
        ),
        migrations.RunPython(read_associations, migrations.RunPython.noop, elidable=True),
    ]
